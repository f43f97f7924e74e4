from __future__ import annotations

import torch

from accel_launch.accelerators.reading import (
    entries,
    fields_of,
    is_built_for,
    is_installed,
    says_built_for,
    text_of,
)


def test_entries_are_sorted_by_number_and_others_left_out(machine):
    root = machine(["dev/nvidia10", "dev/nvidia2", "dev/nvidiactl", "dev/nvidia-uvm"])
    assert [path.name for path in entries(root / "dev", r"nvidia(\d+)")] == ["nvidia2", "nvidia10"]


def test_what_is_not_there_is_empty(tmp_path):
    assert entries(tmp_path / "none", r"(\d+)") == []
    assert text_of(tmp_path / "none") == ""
    assert fields_of(tmp_path) == {}  # a folder


def test_fields(machine):
    root = machine({"f": "Model: \t NVIDIA H200\nGPU UUID:  GPU-1:2\nnothing\n"})
    assert fields_of(root / "f", ":") == {"Model": "NVIDIA H200", "GPU UUID": "GPU-1:2"}


def test_what_torch_reports_of_itself():
    assert is_built_for("cuda") == (torch.version.cuda is not None)
    assert is_built_for("hip") == (torch.version.hip is not None)
    assert is_built_for("xpu") == (torch.version.xpu is not None)


def test_a_file_that_says_nothing_rules_nothing_out(tmp_path):
    file = tmp_path / "version.py"
    assert says_built_for("cuda", file)
    file.write_text("__version__ = '3.0'\n")
    assert says_built_for("cuda", file)
    file.write_text("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\nxpu = None\n")
    assert [says_built_for(name, file) for name in ("cuda", "hip", "xpu")] == [True, False, False]


def test_installed_packages_are_found_and_others_are_not():
    assert is_installed("torch")
    assert not is_installed("torch_of_nobody")
