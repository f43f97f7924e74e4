"""The command line of the same request, for an ``accel launch`` on another machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from accel_launch.options import OPTIONS, SETTINGS_OF_LAUNCHER
from accel_launch.request import LaunchRequest
from accel_launch.settings import AUTO

_KINDS = {"script": (), "module": ("-m",), "executable": ("--no_python",)}
_UNSEEN_ELSEWHERE = frozenset({"flag", "environment", "config file"})
# Settings whose variables speak of this machine, also where nobody set them for the sake of a launch.
OF_THIS_MACHINE = frozenset({"gpu_ids", "num_cpu_threads_per_process", "master_addr", "master_port"})
# Chosen here, so the other `accel launch` chooses anew: by the same name it would launch another of its kind.
_CHOSEN_HERE = frozenset(
    {"launcher"} | {setting.name for table in SETTINGS_OF_LAUNCHER.values() for setting in table}
)


def relaunch_command(
    request: LaunchRequest,
    *,
    without: Collection[str] = (),
    interpreter: Sequence[str] | None = None,
    is_self_contained: bool = False,
) -> tuple[str, ...]:
    """Return the command that asks for what ``request`` asks for, less the settings in ``without``.

    No secret stands in it. Of the variables that ``--env`` names it has the names, for whoever starts the command to
    hand the values on; with ``is_self_contained`` it says nothing of them.

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
        if setting.is_secret:
            continue
        if setting.is_switch:
            words += [setting.flag] if given.value else []
        else:
            words.append(f"{setting.flag}={setting.text_of(given.value)}")
    if not is_self_contained and request.settings["env"].source == "flag":
        words += [f"--env={name}" for name in request.named_variables()]
    words += ["-q"] if request.is_quiet else []
    return (*words, *_KINDS[request.kind], "--", *request.command)
