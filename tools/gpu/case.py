"""Run one speed case in this process: ``python -m tools.gpu.case step --device cpu --small``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import sys

CASES = {
    "step": ("step", 70),
    "offloaded_generation": ("weights", 100),
    "load": ("weights", 80),
    "fsdp2": ("training", 90),
    "saves": ("saves", 110),
    "loader": ("loader", 60),
    "fp8": ("training", 130),
    "llama_8b": ("training", 150),
    "muon": ("training", 60),
    "transformer_engine": ("training", 60),
}
"""By name, in running order: the module that has a function of this name, and seconds on one H200."""


def set_variables(name: str, device: str) -> None:
    """Set what torch and the libraries read at their import, and for a process group the variables of one rank."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "ACCEL_FP16_ON_CPU": "true"}
    os.environ["OMP_NUM_THREADS"] = str(min(16, os.cpu_count() or 1) if device == "cuda" else 1)
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if name == "fsdp2":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def main() -> None:
    """Print rows; one with ``ok: null`` if the case cannot run here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    set_variables(arguments.name, arguments.device)
    from tools.gpu.measuring import Bench, NotHereError

    try:
        module = importlib.import_module(f"tools.gpu.{CASES[arguments.name][0]}")
        getattr(module, arguments.name)(Bench(arguments.device, is_small=arguments.small))
    except NotHereError as reason:
        print("ROW " + json.dumps({"row": arguments.name, "ok": None, "why": str(reason)}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # workers of loaders and threads of saves do not delay the next case


if __name__ == "__main__":
    main()
