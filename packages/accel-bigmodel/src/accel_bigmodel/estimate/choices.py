"""The choices of the command line, without an import of torch."""

from __future__ import annotations

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
DEFAULT_DTYPES = ("float32", "float16", "int8", "int4")
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3", "offload")
