"""What ``python tools/dev.py gpu`` runs: device tests, and speed next to plain PyTorch and Accelerate."""
