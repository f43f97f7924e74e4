"""Plan which part of a model goes to which device: sizes, memory limits, device maps."""
