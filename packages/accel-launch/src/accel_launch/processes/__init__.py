"""Owning the processes of a run: starting, forwarding signals, ending, and saying how they ended."""
