"""One file per command of ``tools/dev.py``."""
