"""Find a checkpoint and read it safely.

For the packages above: all of it. `SavedFiles` compares each file that is read with the manifest.
"""
