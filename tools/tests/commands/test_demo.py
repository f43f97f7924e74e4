import pytest

from tools.commands.demo import launch_options


@pytest.mark.parametrize(
    ("kind", "count", "options", "words"),
    [
        ("cpu", 0, ["--cpu", "--num_processes", "2"], "no accelerator here: two processes on the CPU"),
        ("cuda", 1, ["--num_processes", "1"], "one GPU here: one process"),
        ("cuda", 8, ["--num_processes", "8"], "8 GPUs here: a process for each"),
        ("mps", 1, ["--num_processes", "1"], "one Apple GPU here: one process"),
    ],
)
def test_the_demo_has_a_process_for_each_device_and_two_on_the_cpu(kind, count, options, words):
    assert launch_options(kind, count) == (options, words)
