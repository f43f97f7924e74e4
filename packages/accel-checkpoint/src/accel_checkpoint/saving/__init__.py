"""Save a checkpoint atomically."""
