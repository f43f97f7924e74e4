"""Training on XLA devices such as TPUs, through `torch_xla` (https://docs.pytorch.org/xla)."""
