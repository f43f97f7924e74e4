"""Checkpoints into models: which files, which names, and how each tensor is read."""
