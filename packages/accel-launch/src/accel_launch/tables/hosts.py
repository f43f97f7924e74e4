"""Settings of several machines that are started over ssh from here."""

from __future__ import annotations

from accel_launch.tables.parsers import shell_words
from accel_state.environment import Setting
from accel_state.environment.parsers import boolean, text

TITLE = "several machines over ssh"

SETTINGS = (
    Setting(
        "hosts",
        "",
        text,
        None,
        "Machines to start on, such as `host1,host2:4` (`:N` for N processes).",
        flag="--hosts",
    ),
    Setting(
        "hostfile",
        "",
        text,
        None,
        "File with one machine per line, such as `host1 slots=4`.",
        flag="--hostfile",
    ),
    Setting(
        "ssh_options",
        "",
        shell_words,
        None,
        "Further options for `ssh`, as in `--ssh_options='-p 2222 -i KEY'`.",
        flag="--ssh_options",
    ),
    Setting(
        "no_preflight",
        "",
        boolean,
        False,
        "Start on hosts without comparing their versions and files.",
        flag="--no_preflight",
    ),
)
