"""The strategy `megatron`."""
