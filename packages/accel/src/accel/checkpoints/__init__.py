"""The parts of a run's checkpoint, and the objects that they are loaded into."""
