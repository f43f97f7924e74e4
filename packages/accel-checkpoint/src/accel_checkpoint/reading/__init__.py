"""Find a checkpoint and read it safely.

For the packages above: all but `merging`. `checked` is the way to a file: what it returns is what was saved.
"""
