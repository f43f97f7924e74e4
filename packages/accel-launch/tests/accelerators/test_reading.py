from __future__ import annotations

from accel_launch.accelerators.reading import entries, fields_of, text_of


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
