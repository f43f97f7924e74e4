"""Stop early and in good order when the machine is about to be taken away."""
