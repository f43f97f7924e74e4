"""Context and sequence parallelism: ranks have different tokens of the same sequences."""
