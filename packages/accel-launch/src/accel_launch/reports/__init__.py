"""Telling how a run failed: the first cause, in a few lines or as JSON."""
