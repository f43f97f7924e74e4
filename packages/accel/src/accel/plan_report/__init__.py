"""What ``accel plan`` prints and draws."""
