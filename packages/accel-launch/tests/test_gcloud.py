from __future__ import annotations

from accel_launch.gcloud import on_all_workers, on_machine


def test_alpha_and_zone_are_reported_only_where_they_are_requested():
    assert on_all_workers("pod", "ls", zone=None) == (
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--command", "ls", "--worker", "all"),
    )
    assert on_all_workers("pod", "ls", zone="z", is_alpha=True)[1:6] == (
        "alpha",
        "compute",
        "tpus",
        "tpu-vm",
        "ssh",
    )
    assert on_machine("a", "ls", zone=None) == ("gcloud", "compute", "ssh", "a", "--command", "ls")
