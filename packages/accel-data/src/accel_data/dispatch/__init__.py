"""Batches that one rank reads and sends to the others."""
