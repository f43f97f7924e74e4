"""Nested data in one process: walk, describe, slice, join, convert and move it."""
