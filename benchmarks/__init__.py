"""Measurements beside other methods; the package never imports them."""
