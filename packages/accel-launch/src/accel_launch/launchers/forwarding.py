"""What other machines get of this one's environment, where a program in between starts the ranks there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from accel_state.errors import ConfigError

# Beside the settings of the run. Anything not named here stays here: it may be a secret.
FORWARDED = (
    "DS_ACCELERATOR",
    "GLOO_SOCKET_IFNAME",
    "HF_HOME",
    "LD_LIBRARY_PATH",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "PATH",
    "PYTHONPATH",
)
# Variables of the libraries that a run works with, by how their names begin.
_PREFIXES = ("FI_", "GLOO_", "HF_", "NCCL_", "PYTORCH_", "TORCH_", "UCX_", "WANDB_")
_OF_THIS_MACHINE = frozenset({"LD_LIBRARY_PATH", "PATH", "PYTHONPATH"})
_SECRET_WORDS = ("CREDENTIAL", "KEY", "PASSWORD", "SECRET", "TOKEN")


def library_variables(environ: Mapping[str, str], *, named: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of libraries, and those in ``named``; some are secrets (``HF_TOKEN``)."""
    return {name: value for name, value in environ.items() if name.startswith(_PREFIXES) or name in named}


def is_secret(name: str) -> bool:
    """Tell whether a variable of this name must not stand on a command line, where all users of a machine see it."""
    return any(word in name for word in _SECRET_WORDS)


def shown_to_all(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what may stand on a command line, or go through a program that puts it there: no secrets."""
    found = library_variables(environ, named=FORWARDED)
    return {name: value for name, value in found.items() if not is_secret(name)}


def public_variables(variables: Mapping[str, str], *, where: str, otherwise: str) -> dict[str, str]:
    """Return ``variables``, none of which is a secret, for a place where their values can be seen.

    Args:
        variables: What ``--env`` names.
        where: That place, with what is done with them there.
        otherwise: What to do with a secret instead, in a sentence.

    Raises:
        ConfigError: If one of them is a secret, by its name.
    """
    for name in variables:
        if is_secret(name):
            raise ConfigError(f"`--env {name}` looks like a secret, but {where}. {otherwise}")
    return dict(variables)


def forwarded_to_images(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what containers and clusters with a file system of their own get: no secrets, and no search paths."""
    return {name: value for name, value in shown_to_all(environ).items() if name not in _OF_THIS_MACHINE}
