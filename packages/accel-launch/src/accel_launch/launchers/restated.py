"""The same request as a command line, for another ``accel launch`` that runs elsewhere."""

from __future__ import annotations

from collections.abc import Collection

from accel_launch.options import OPTIONS, SWITCHES
from accel_launch.request import LaunchRequest

_KINDS = {"script": (), "module": ("-m",), "executable": ("--no_python",)}


def restated(request: LaunchRequest, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the command that asks for what ``request`` asks for, less the settings in ``without``.

    Flags come from flags only: environment and config file say elsewhere what they say here.
    """
    words = [*request.interpreter, "-m", "accel_launch", "launch"]
    if request.config.path is not None:
        words += ["--config_file", str(request.cwd / request.config.path)]
    for setting in OPTIONS:
        given = request.settings[setting.name]
        if given.source != "flag" or setting.name in without or setting.flag is None:
            continue
        if setting.name in SWITCHES:
            words += [setting.flag] if given.value else []
        else:
            words.append(f"{setting.flag}={setting.text_of(given.value)}")
    words += ["-q"] if request.is_quiet else []
    return (*words, *_KINDS[request.kind], "--", *request.command)
