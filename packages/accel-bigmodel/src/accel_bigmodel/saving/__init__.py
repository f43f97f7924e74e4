"""Models into checkpoints that appear whole or not at all."""
