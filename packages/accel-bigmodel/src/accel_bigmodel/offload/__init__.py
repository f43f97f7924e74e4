"""Weights that are not in the model: where they lie, how they are read, and what stands in for them."""
