"""The command line: dmvi fit, dmvi demo."""

from dmvi.cli._app import main as main
