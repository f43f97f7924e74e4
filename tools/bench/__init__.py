"""Side-by-side measurements: accel, the peer and plain PyTorch, in one environment and one run."""
