import pytest

from tools.commands.test import in_parallel, options_in_ci


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (None, []),
        ("", []),
        ("false", []),
        ("true", ["--no-unexpected-skips"]),
        ("1", ["--no-unexpected-skips"]),
    ],
)
def test_ci_accepts_no_unexpected_skips(monkeypatch, value, options):
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert options_in_ci() == options


@pytest.mark.parametrize(("num_cores", "workers"), [(1, None), (2, "2"), (64, "4")])
def test_the_whole_suite_runs_in_as_many_processes_as_there_are_cores_up_to_four(num_cores, workers):
    options = in_parallel(num_cores)
    in_order = ["--dist", "loadfile", "--no-loadscope-reorder"]
    assert options == ([] if workers is None else ["-n", workers, *in_order])
