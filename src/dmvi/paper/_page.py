"""The page of the docs."""


def reproduction_page(results, coordinates) -> str:
    """The page."""
    return ""
