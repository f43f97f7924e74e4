"""What a model is made of: the units that are sharded, checkpointed and compiled as one, and where plans come from."""
