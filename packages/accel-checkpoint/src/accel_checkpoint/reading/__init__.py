"""Find a checkpoint and read it safely."""
