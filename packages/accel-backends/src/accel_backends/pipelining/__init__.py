"""Models cut into stages, one for each rank of a pipeline."""
