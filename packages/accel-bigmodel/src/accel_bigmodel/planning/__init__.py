"""Plan the device of each part of a model: sizes, memory limits, device maps."""
