"""Sequences that ranks share: which tokens each has, how batches are cut, and what attention knows of the others."""
