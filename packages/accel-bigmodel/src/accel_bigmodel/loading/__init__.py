"""Checkpoints into models: which files, which names, which tensor by which way."""
