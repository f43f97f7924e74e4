"""Settings that only a launcher has use for, in the form of accel-state's tables.

A setting whose variable is empty never reaches the ranks and is not read from the environment.
"""
