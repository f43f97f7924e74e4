"""File formats: safetensors, `torch.save` and `torch.distributed.checkpoint`, with safe reading.

For the packages above: `deferred`, `distributed`, `plain_data`, `safetensor_writing`, `torch_files` and `weight_files`.
"""
