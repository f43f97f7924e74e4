"""File formats: safetensors, `torch.save` and `torch.distributed.checkpoint`, with safe reading.

For the packages above: `distributed`, `torch_files` and `weight_files`.
"""
