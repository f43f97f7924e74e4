"""File formats: safetensors, `torch.save` and `torch.distributed.checkpoint`, with safe reading.

For the packages above: `deferred`, `distributed_metadata`, `plain_data`, `safetensor_ranges`, `safetensor_writing`,
`torch_files` and `weight_files`. The others are internal.
"""
