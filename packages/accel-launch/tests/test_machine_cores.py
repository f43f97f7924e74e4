from __future__ import annotations

import pytest

from accel_launch.machine import quota, threads_of


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"pod/own/cpu.max": "max 100000"}, None),
        ({"pod/own/cpu.max": "250000 100000"}, 3),
        ({"pod/cpu.max": "200000 100000", "pod/own/cpu.max": "max 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_container_has_the_cores_that_its_quota_comes_to(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quota("/pod/own", root=tmp_path) == cores


def test_ranks_share_the_cores_on_the_cpu_and_have_one_thread_next_to_an_accelerator():
    assert threads_of(192, num_ranks=8, is_on_cpu=True) == 24
    assert threads_of(2, num_ranks=4, is_on_cpu=True) == 1
    assert threads_of(192, num_ranks=8, is_on_cpu=False) == 1
