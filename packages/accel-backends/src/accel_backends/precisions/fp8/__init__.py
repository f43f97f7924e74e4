"""8-bit training: one file per library, and what they share."""
