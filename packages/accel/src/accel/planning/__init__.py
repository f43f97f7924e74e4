"""A step of the real engine without the other ranks and without values: what `accel plan` reports."""
