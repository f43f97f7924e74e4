"""Weights in 8 or 4 bits, with bitsandbytes."""
