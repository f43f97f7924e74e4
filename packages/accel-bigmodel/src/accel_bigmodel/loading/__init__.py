"""Load checkpoints into models: match names and shapes, and read each tensor."""
