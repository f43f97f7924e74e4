"""Before a collective: the ranks compare what they are about to call."""
