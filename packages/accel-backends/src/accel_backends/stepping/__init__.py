"""The training step: accumulation of gradients, backward, clipping."""
