"""File formats: safetensors, `torch.save` and `torch.distributed.checkpoint`, with safe reading."""
