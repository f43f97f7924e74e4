"""Models distributed over devices, memory and disk."""
