from __future__ import annotations

import pytest

from accel_launch.accelerators.neuron import Neuron


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, ("0", "1", "2", "3")),
        ({"NEURON_RT_VISIBLE_CORES": "0-1,3"}, ("0", "1", "3")),
        ({"NEURON_RT_VISIBLE_CORES": "2-9"}, ("2", "3")),
        ({"NEURON_RT_VISIBLE_CORES": "x,1"}, ()),
        ({"NEURON_RT_NUM_CORES": "3"}, ("0", "1", "2")),
    ],
)
def test_cores_are_counted_and_chosen(machine, environ, seen):
    assert Neuron().visible(environ, machine(["dev/neuron0", "dev/neuron1"])) == seen


def test_a_chip_reports_how_many_cores_it_has(machine):
    root = machine({"dev/neuron0": "", "sys/devices/virtual/neuron_device/neuron0/core_count": "8\n"})
    assert len(Neuron().visible({}, root)) == 8
