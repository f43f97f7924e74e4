"""Models whose parameters are sharded over ranks by torch's `fully_shard`."""
