"""Which import has used a GPU: found by doing the imports again in a process of their own.

As a program, ``python -P -m accel_launch.notebook.gpu_users``, it reads ``{"path": [...], "modules": [...]}`` from its
standard input, imports the modules one after another, and writes the first of them that uses a GPU, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, NoReturn

# Parts of torch, some from vendors' plugins, that say whether this process has used their devices.
DEVICE_MODULES = ("cuda", "mlu", "musa", "npu", "sdaa", "xpu")
_TIMEOUT_S = 120


def has_used_gpu(modules: Mapping[str, ModuleType]) -> bool:
    """Tell whether a process with these modules has used a device in a way that a fork does not survive."""
    torch = modules.get("torch")
    devices = [getattr(torch, name) for name in DEVICE_MODULES if hasattr(torch, name)]
    return any(device.is_initialized() for device in devices if hasattr(device, "is_initialized"))


def import_that_uses_gpu(modules: Mapping[str, ModuleType]) -> str | None:
    """Return the import among ``modules`` that uses a GPU, and where, in words; None if none does by itself.

    Takes as long as the imports do.
    """
    question = json.dumps({"path": sys.path, "modules": _worth_trying(modules)})
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "accel_launch.notebook.gpu_users"],
            input=question,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (
        subprocess.TimeoutExpired,
        IndexError,
        json.JSONDecodeError,
    ):  # an import hung, or ended the process
        return None
    return None if found is None else f"the import of `{found['module']}` ({found['file']}:{found['line']})"


def _worth_trying(modules: Mapping[str, ModuleType]) -> list[str]:
    """Return the names of modules that were imported from files, in order, less Python's own and torch's."""
    known = {*sys.stdlib_module_names, "torch"}
    foreign = [name for name in modules if name.partition(".")[0] not in known]
    return [name for name in foreign if getattr(modules[name], "__spec__", None) is not None]


class _GPUUsed(BaseException):
    """Thrown through an import at the moment at which it would use a GPU."""

    def __init__(self, frame: FrameType) -> None:
        self.file = frame.f_code.co_filename
        self.line = frame.f_lineno  # of a frame that goes on, so it must be read now


def first_user(names: Iterable[str]) -> dict[str, Any] | None:
    """Import ``names`` and return the first that uses a GPU, with file and line; None if none does.

    Changes torch for good: no device can be used in this process afterwards.
    """
    torch = import_module("torch")  # by name: this package is imported where torch must not be
    for name in DEVICE_MODULES:
        if hasattr(torch, name):
            setattr(getattr(torch, name), "_lazy_init", _refuse)  # noqa: B010 - a module is no place for types
    for name in names:
        try:
            # A stranger's import may fail here in any way; in the other process it has not.
            with suppress(Exception):
                import_module(name)
        except _GPUUsed as used:
            return {"module": name, "file": used.file, "line": used.line}
        except SystemExit:
            continue
    return None


def _refuse(*arguments: object, **named: object) -> NoReturn:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    assert frame is not None
    raise _GPUUsed(frame)


def main() -> int:
    """Answer one question."""
    asked = json.loads(sys.stdin.readline())
    sys.path[:] = asked["path"]
    answer = json.dumps(first_user(asked["modules"]))
    sys.stdout.write(f"\n{answer}\n")  # an import may have written something
    return 0


if __name__ == "__main__":
    sys.exit(main())
