"""`python -m dmvi` is the command `dmvi`."""

from dmvi.cli import main

main()
