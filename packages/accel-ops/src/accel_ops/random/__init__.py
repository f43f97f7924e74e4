"""Random number generators: seed them, save and restore them, make them equal on all ranks."""
