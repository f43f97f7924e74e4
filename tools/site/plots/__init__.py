"""Pictures of recorded runs: each panel draws what a run printed or left behind onto one pair of axes."""
