"""Save a checkpoint atomically.

For the packages above: `saver`, `transaction`, `handle`, `retention`, `snapshot` and the files to write
(`pending_files`, `distributed_files`, `model_weights`). The others are internal.
"""
