"""Communication between the ranks of a save: reports, verdicts and heartbeats.

For the packages above: `agreement` and `deferred_error`. The others are internal.
"""
