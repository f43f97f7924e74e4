"""The flags and variables of this launch for a launch on another machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from accel_launch.launchers.selection import CHOSEN_BY_NAME
from accel_launch.options import OPTIONS
from accel_launch.request import LaunchRequest
from accel_launch.settings import AUTO
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
_SECRET_WORDS = ("AUTH", "COOKIE", "CRED", "DSN", "KEY", "PASS", "PWD", "SECRET", "TOKEN")
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
_PASSWORD_IN_ADDRESS = re.compile(r"//[^/\s:@]*:[^/\s]*@")


def library_variables(environ: Mapping[str, str], *, named: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of libraries, and those in ``named``; some are secrets (``HF_TOKEN``)."""
    return {name: value for name, value in environ.items() if name.startswith(_PREFIXES) or name in named}


def is_secret(name: str, value: str) -> bool:
    """Whether other users must not see a variable: by its name in any case, or by a password in an address."""
    name = name.upper()
    has_secret_name = name not in _DIRECTORIES and any(word in name for word in _SECRET_WORDS)
    return has_secret_name or _PASSWORD_IN_ADDRESS.search(value) is not None


def shown_to_all(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what may be on a command line, or go through a program that puts it there: no secrets."""
    found = library_variables(environ, named=FORWARDED)
    return {name: value for name, value in found.items() if not is_secret(name, value)}


def public_variables(variables: Mapping[str, str], *, where: str, otherwise: str) -> dict[str, str]:
    """Return ``variables``, none of which is a secret, for a place where their values can be seen.

    Args:
        variables: What ``--env`` names.
        where: That place, with what is done with them there.
        otherwise: What to do with a secret instead, in a sentence.

    Raises:
        ConfigError: If one of them `is_secret`.
    """
    for name, value in variables.items():
        if is_secret(name, value):
            raise ConfigError(f"`--env {name}` looks like a secret, but {where}. {otherwise}")
    return dict(variables)


def forwarded_to_images(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what containers and clusters with a file system of their own get: no secrets, and no search paths."""
    return {name: value for name, value in shown_to_all(environ).items() if name not in _OF_THIS_MACHINE}


_KINDS = {"script": (), "module": ("-m",), "executable": ("--no_python",)}
_UNSEEN_ELSEWHERE = frozenset({"flag", "environment", "config file"})
# Settings whose variables are about this machine, even if they were not set for a launch.
OF_THIS_MACHINE = frozenset({"gpu_ids", "num_cpu_threads_per_process", "master_addr", "master_port"})
# Chosen here; the other `accel launch` chooses again, because the same name would launch another of its kind.
_CHOSEN_HERE = CHOSEN_BY_NAME | {"launcher"}


def relaunch_command(
    request: LaunchRequest,
    *,
    without: Collection[str] = (),
    interpreter: Sequence[str] | None = None,
    is_self_contained: bool = False,
) -> tuple[str, ...]:
    """Return the command that asks for what ``request`` asks for, less the settings in ``without``.

    It contains no secret. It has the names of the variables of ``--env``, so that the caller can pass on their values;
    with ``is_self_contained`` it has none of them.

    Args:
        request: What is asked for.
        without: Names of settings to leave out.
        interpreter: Python there; the one here if omitted.
        is_self_contained: Say with flags what environment and config file say here, since they say nothing there.
            Otherwise flags come from flags only.
    """
    sources = _UNSEEN_ELSEWHERE if is_self_contained else {"flag"}
    words = [*(request.interpreter if interpreter is None else interpreter), "-m", "accel_launch", "launch"]
    if request.config.path is not None and not is_self_contained:
        words += ["--config_file", str(request.cwd / request.config.path)]
    if request.is_given("launcher") and not is_self_contained:
        words.append(f"--launcher={AUTO}")
    for setting in OPTIONS:
        given = request.settings[setting.name]
        if given.source not in sources or setting.name in _CHOSEN_HERE.union(without) or setting.flag is None:
            continue
        if given.source == "environment" and setting.name in OF_THIS_MACHINE:
            continue
        if setting.launch.is_secret:
            continue
        if setting.is_switch:
            words += [setting.flag] if given.value else []
        else:
            words.append(f"{setting.flag}={setting.text_of(given.value)}")
    if not is_self_contained and request.settings["env"].source == "flag":
        words += [f"--env={name}" for name in request.named_variables()]
    words += ["-q"] if request.is_quiet else []
    return (*words, *_KINDS[request.kind], "--", *request.command)
