"""The config file: where it lies, what may be in it, and reading it."""
