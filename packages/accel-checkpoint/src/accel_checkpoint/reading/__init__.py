"""Find a checkpoint and read it safely.

For the packages above: all of it. `checked_file` of `manifest` returns the path of a file that is as it was
saved.
"""
