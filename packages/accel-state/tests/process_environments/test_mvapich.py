from __future__ import annotations

import pytest

from accel_state.process_environments.mvapich import MVAPICHEnvironment


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({"MV2_COMM_WORLD_RANK": "0"}, True), ({"MV2_COMM_WORLD_SIZE": "2"}, True), ({"PMI_RANK": "0"}, False)],
)
def test_one_trace_is_enough_to_detect_it(environ, expected):
    assert MVAPICHEnvironment().detect(environ) is expected


def test_its_four_variables_are_read():
    values = {"RANK": "2", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}
    found = MVAPICHEnvironment().topology({f"MV2_COMM_WORLD_{name}": value for name, value in values.items()})
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (2, 4, 0, 2)
    assert (found.node_rank, found.source) == (1, "mvapich")
