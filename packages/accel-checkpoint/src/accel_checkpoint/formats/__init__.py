"""File formats: safetensors, `torch.save` and `torch.distributed.checkpoint`, with safe reading.

For the packages above: `distributed_metadata`, `safetensor_ranges`, `torch_files` and `weight_files`. The others are
internal.
"""
