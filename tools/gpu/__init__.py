"""The subjects of ``python tools/dev.py gpu``: device tests, and speed next to plain PyTorch and Accelerate."""
