"""Offloaded weights: where they are stored, how they are read, and their placeholders in the model."""
