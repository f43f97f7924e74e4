"""8-bit and 4-bit weights, with bitsandbytes."""
