"""Run one speed case in this process: ``python -m tools.gpu.case step --device cpu --small``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys

CASES = {
    "step": ("training", 70),
    "offloaded_generation": ("storage", 100),
    "load": ("storage", 80),
    "fsdp2": ("training", 90),
    "saves": ("storage", 110),
    "loader": ("loader", 60),
    "fp8": ("training", 130),
    "llama_8b": ("training", 150),
    "muon": ("training", 60),
    "deepspeed": ("training", 60),
    "transformer_engine": ("training", 60),
}
"""By name, in the order in which they run: the module that has a function of this name, and seconds on one H200."""


def main() -> None:
    """Print rows; one with ``ok: null`` if the case cannot run here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    # Read by torch and the libraries when they are imported.
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "ACCEL_FP16_ON_CPU": "true"}
    os.environ["OMP_NUM_THREADS"] = str(min(16, os.cpu_count() or 1) if arguments.device == "cuda" else 1)
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from tools.gpu.measuring import Bench, NotHereError

    module = importlib.import_module(f"tools.gpu.{CASES[arguments.name][0]}")
    try:
        getattr(module, arguments.name)(Bench(arguments.device, is_small=arguments.small))
    except NotHereError as reason:
        print("ROW " + json.dumps({"row": arguments.name, "ok": None, "why": str(reason)}))
    sys.stdout.flush()
    os._exit(0)  # workers of loaders and threads of saves do not delay the next case


if __name__ == "__main__":
    main()
