"""What the ranks of a run tell each other about a checkpoint."""
