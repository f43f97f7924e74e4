"""Attention over shared sequences: how each attention module is intercepted, and the ways in which ranks compute it."""
