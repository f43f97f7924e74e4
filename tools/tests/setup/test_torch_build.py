from pathlib import Path

import pytest

from tools.setup import torch_build


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets what this machine looks like, and returns pip's extra arguments for it."""

    def arguments(*, platform="linux", gpu=False, version="2.13.0", reachable=True):
        monkeypatch.setattr(torch_build.sys, "platform", platform)
        monkeypatch.setattr(torch_build, "has_gpu", lambda: gpu)
        monkeypatch.setattr(torch_build, "version_pip_would_take", lambda python, constraints: version)
        monkeypatch.setattr(torch_build, "is_reachable", lambda url: reachable)
        return torch_build.pip_arguments_for_torch(Path("python"), Path("constraints.txt"))

    return arguments


def test_without_a_gpu_the_cpu_build_is_looked_for(machine):
    assert machine() == ["--extra-index-url", torch_build.CPU_INDEX]


def test_a_cpu_build_that_pip_finds_anyway_is_taken(machine):
    assert machine(version="2.13.0+cpu") == []


@pytest.mark.parametrize("machine_kind", [{"gpu": True}, {"platform": "darwin"}, {"platform": "win32"}])
def test_where_the_default_build_is_right_nothing_is_added(machine, machine_kind):
    assert machine(**machine_kind) == []


def test_an_unreachable_index_of_cpu_builds_is_said_and_leaves_a_cuda_build(machine, capsys):
    assert machine(reachable=False) is None
    assert "unreachable: pip finds torch 2.13.0 on the index" in capsys.readouterr().err
