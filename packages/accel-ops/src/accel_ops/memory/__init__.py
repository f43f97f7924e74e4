"""Release memory, and find a batch size that fits into it."""
