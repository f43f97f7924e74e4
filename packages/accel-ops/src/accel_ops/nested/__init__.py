"""Nested data in one process: walk, describe, cut, join, convert and move it."""
