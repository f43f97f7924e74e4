"""Checks that need a GPU, each a script to be run by hand where one is: `python -m tools.gpu.NAME`."""
