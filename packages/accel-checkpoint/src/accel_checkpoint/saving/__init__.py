"""Save a checkpoint atomically.

For the packages above: `saver`, `stage`, `handle`, `retention`, `snapshot`, `sink`, the files to write
(`pending_files`, `distributed_files`, `model_weights`), and of `transaction` what describes a save.
The others are internal.
"""
