"""The tensors of a model: names, dtypes, kinds, places, shared memory."""
