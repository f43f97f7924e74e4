"""Communication between the ranks of a save: reports, verdicts and heartbeats."""
