"""Plain file formats: safetensors and `torch.save`, read safely and written whole."""
