"""What can be asked of an estimate; importing this costs no torch."""

from __future__ import annotations

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
SHOWN = ("float32", "float16", "int8", "int4")
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3", "offload")
