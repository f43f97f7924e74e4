"""Preemption: stop all ranks at the same step when the scheduler is about to take the machine away."""
