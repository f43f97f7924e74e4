"""One file per case."""
