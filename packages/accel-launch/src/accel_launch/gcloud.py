"""Command lines of ``gcloud`` that run something on the machines of a TPU pod."""

from __future__ import annotations

from accel_state.errors import ConfigError

PROGRAM = "gcloud"
INSTALL = "See https://cloud.google.com/sdk."
PYTHON_OF_PODS = ("python3",)
"""The Python of the machines of a pod."""


def on_all_workers(tpu: str, command: str, *, zone: str | None, is_alpha: bool = False) -> tuple[str, ...]:
    """Return the command line that runs ``command``, a line for a shell there, on each machine of a TPU."""
    alpha = ("alpha",) if is_alpha else ()
    where = ("--zone", _no_option("--tpu_zone", zone)) if zone else ()
    tpu = _no_option("--tpu_name", tpu)
    words = (*alpha, "compute", "tpus", "tpu-vm", "ssh", tpu, *where, "--command", command, "--worker", "all")
    return (PROGRAM, *words)


def on_machine(name: str, command: str, *, zone: str | None) -> tuple[str, ...]:
    """Return the command line that runs ``command``, a line for a shell there, on one Compute VM."""
    where = ("--zone", _no_option("--tpu_zone", zone)) if zone else ()
    return (PROGRAM, "compute", "ssh", _no_option("--vm", name), *where, "--command", command)


def _no_option(flag: str, value: str) -> str:
    if value.startswith("-") or "@-" in value:
        raise ConfigError(f"`{flag}` is `{value}`, which `gcloud` would take for an option. Give a name.")
    return value
