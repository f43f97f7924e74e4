"""Batches that one rank reads and sends to all ranks."""
