"""Side-by-side measurements: accel, Accelerate and plain PyTorch, in one environment and one run."""
