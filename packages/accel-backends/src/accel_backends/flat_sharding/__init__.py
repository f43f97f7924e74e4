"""Models whose parameters are flattened and sharded by torch's `FullyShardedDataParallel`, version 1 of FSDP."""
