"""What `accel plan` reports: a step of the real engine on ranks that are not there, with tensors that have no values."""
