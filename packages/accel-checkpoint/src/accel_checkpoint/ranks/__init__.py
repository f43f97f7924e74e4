"""Communication between the ranks of a save: reports, verdicts and heartbeats.

For the packages above: `agreement`. The others are internal.
"""
