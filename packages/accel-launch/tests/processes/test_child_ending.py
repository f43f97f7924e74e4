from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.processes.child import (
    counter_files,
    describe_ending,
    exit_code_for_shell,
    num_memory_kills,
    signal_name,
)


@pytest.mark.parametrize(
    ("return_code", "exit_code", "words"),
    [
        (0, 0, "ended with exit code 0"),
        (3, 3, "ended with exit code 3"),
        (-9, 137, "was killed by SIGKILL"),
        (-11, 139, "was killed by SIGSEGV"),
    ],
)
def test_an_ending_in_numbers_and_words(return_code, exit_code, words):
    assert exit_code_for_shell(return_code) == exit_code
    assert describe_ending(return_code) == words


def test_a_signal_without_a_name_keeps_its_number():
    assert signal_name(40) == "signal 40"


def machine(folder: Path, files: dict[str, str]) -> tuple[Path, ...]:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return counter_files(folder / "own", folder / "cgroup", folder / "proc")


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({"own": "0::/job\n", "cgroup/job/memory.events": "oom 3\noom_kill 2\n"}, 2),
        ({"own": "0::/outside\n", "cgroup/memory.events": "oom_kill 1\noom_group_kill 5\n"}, 1),
        ({"own": "4:cpu,memory:/job\n", "cgroup/memory/job/memory.oom_control": "oom_kill 4\n"}, 4),
        ({"own": "0::/\n", "proc/vmstat": "pgfault 9\noom_kill 7\n"}, 7),
        ({}, 0),
    ],
)
def test_the_nearest_counter_is_read(tmp_path, files, kills):
    assert num_memory_kills(machine(tmp_path, files)) == kills


def test_the_group_counts_and_not_the_machine_around_it(tmp_path):
    files = {"own": "0::/", "cgroup/memory.events": "oom_kill 1\n", "proc/vmstat": "oom_kill 9\n"}
    assert num_memory_kills(machine(tmp_path, files)) == 1
