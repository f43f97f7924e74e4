"""Tensor parallelism: layers are sharded over the ranks of one axis, as the plan of the model says."""
