"""The command line: dmvi fit, report, calibrate, demo, reproduce."""

from dmvi.cli._app import main as main
