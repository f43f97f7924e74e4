"""One speed case a file, each with a ``run(bench)`` that puts rows; in the order in which they run."""

CASES = {
    "step": 70,
    "offloaded_generation": 100,
    "load": 80,
    "fsdp2": 90,
    "saves": 110,
    "loader": 60,
    "fp8": 110,
    "llama_8b": 110,
    "muon": 60,
    "deepspeed_fp16": 60,
    "transformer_engine": 60,
}
"""Seconds that each may take on one H200."""
