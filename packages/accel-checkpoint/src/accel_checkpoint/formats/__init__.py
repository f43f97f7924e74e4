"""File formats: safetensors and `torch.save`, with safe reading."""
