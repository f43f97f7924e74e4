from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.launched_by.xla import XLAEnvironment
from accel_state.topology import Topology


def test_a_single_device_is_one_process():
    assert XLAEnvironment().detect({"PJRT_DEVICE": "TPU"})
    assert XLAEnvironment().topology({"PJRT_DEVICE": "TPU"}) == Topology(source="xla")


def test_hosts_of_a_pod_count_on():
    found = XLAEnvironment().topology(
        {
            "PJRT_DEVICE": "TPU",
            "PJRT_LOCAL_PROCESS_RANK": "1",
            "PJRT_LOCAL_PROCESS_COUNT": "4",
            "TPU_WORKER_ID": "1",
            "TPU_WORKER_HOSTNAMES": "10.0.0.1, 10.0.0.2",
        }
    )
    assert found == Topology(5, 8, 1, 4, 1, 2, "xla", "10.0.0.1", None)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"PJRT_LOCAL_PROCESS_RANK": "4", "PJRT_LOCAL_PROCESS_COUNT": "4"},
            "`PJRT_LOCAL_PROCESS_RANK` is `4`",
        ),
        ({"PJRT_LOCAL_PROCESS_RANK": "x"}, "`PJRT_LOCAL_PROCESS_RANK` is `x`, but it must be a whole number"),
        (
            {"PJRT_DEVICE": "TPU", "TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "a,b"},
            "`TPU_WORKER_ID` is `2`",
        ),
    ],
)
def test_contradicting_values_are_named(environ, message):
    with pytest.raises(ConfigError, match=message):
        XLAEnvironment().topology(environ)


def test_the_name_of_a_tpu_alone_does_not_make_a_process_one_of_its_own():
    assert not XLAEnvironment().detect({"TPU_NAME": "mine"})
