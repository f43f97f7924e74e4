"""Samplers: the order of an epoch, and each rank's part of it."""
