"""Show versions, machine and config file, to paste into a bug report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from accel_launch.config.file import find_config
from accel_launch.installation import PACKAGES
from accel_launch.launchers.relaunch import is_secret
from accel_launch.machine import find_accelerators, present_accelerators
from accel_launch.messages import show
from accel_launch.options import OPTIONS
from accel_state.environment import snapshot
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.nvidia import get_driver_version, query_gpus

_LIBRARIES = ("torch", "numpy", "safetensors")
_PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
_VERSIONS = """
import json, torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
print(json.dumps({"cuda": torch.version.cuda, "nccl": nccl, "cudnn": torch.backends.cudnn.version()}))
"""


class EnvCommand:
    """``accel env``."""

    help = "Show versions, machine and config file, to paste into a bug report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--config_file", metavar="FILE", help="config file to show instead of your own")
        parser.add_argument("--json", action="store_true", help="print it as JSON")

    def run(self, arguments: argparse.Namespace) -> int:
        environ = snapshot()
        report = environment_report(arguments.config_file, environ=environ)
        show(json.dumps(report, indent=2, default=str) if arguments.json else as_text(report))
        return 0


command = EnvCommand()


def environment_report(config_file: str | None, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what matters about this installation and machine, importing none of the packages it names."""
    told: dict[str, Any]
    try:
        config = find_config(config_file, environ=environ)
    except ConfigError as error:
        told = {"config_file": str(error)}
    else:
        told = {"config_file": config.path and str(config.path), "config": _without_secrets(config.values)}
    return {
        "packages": {name: _version_of(name) for name in (*PACKAGES, *_LIBRARIES)},
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "accelerate": what_accelerate_means(),
        "cpu_cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "accelerators": present_accelerators(),
        "nvidia": _nvidia(),
        "used_accelerators": ",".join(find_accelerators(environ).names) or None,
        "variables": {
            name: "(secret)" if is_secret(name, value) else value
            for name, value in sorted(environ.items())
            if name.startswith(_PREFIXES)
        },
        **told,
    }


def _without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    hidden = {"additional_args"} | {setting.config_key for setting in OPTIONS if setting.launch.is_secret}
    shown = {key: "(secret)" if key in hidden and value else value for key, value in values.items()}
    if isinstance(lines := shown.get("commands"), list):
        shown["commands"] = f"(lines: {len(lines)})"
    return {key: "(secret)" if is_secret("", str(value)) else value for key, value in shown.items()}


def what_accelerate_means() -> str | None:
    """Return version and place of what `import accelerate` gives, None for nothing."""
    found = find_spec("accelerate")
    return None if found is None else f"{_version_of('accelerate')} ({found.origin})"


def as_text(report: Mapping[str, Any]) -> str:
    """Return the report as a Markdown list."""
    lines: list[str] = []
    for name, value in report.items():
        title = name.replace("_", " ")
        if isinstance(value, Mapping) and value:
            lines += [f"- {title}:", *(f"    - {key}: {_shown(content)}" for key, content in value.items())]
        else:
            lines.append(f"- {title}: {_shown(value)}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "none" if value is None or value == {} else str(value)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nvidia() -> Mapping[str, Any] | str | None:
    """Return the NVIDIA GPUs, their driver and the libraries of torch for them, or why they are unknown."""
    try:
        gpus = {f"GPU {number}": gpu for number, gpu in enumerate(query_gpus("name,memory.total"))}
        told: Mapping[str, Any] = {**gpus, "driver": get_driver_version()}
    except NotAvailableError as error:
        return str(error) if "nvidia" in present_accelerators() else None
    # In a process of its own, since importing torch takes seconds, and it may be what is broken.
    python = subprocess.run([sys.executable, "-c", _VERSIONS], capture_output=True, text=True, check=False)
    return {**told, **({"torch": python.stderr[-200:]} if python.returncode else json.loads(python.stdout))}


def _memory_gib() -> float:
    import psutil

    return round(psutil.virtual_memory().total / 2**30, 1)
