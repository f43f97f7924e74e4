"""Models spread over devices, memory and disk."""
