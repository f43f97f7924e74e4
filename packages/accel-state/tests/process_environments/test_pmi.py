from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.process_environments.pmi import PMIEnvironment
from accel_state.topology import Topology

SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}


def test_a_single_process_needs_no_local_variables():
    found = PMIEnvironment().topology({"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert found == Topology(source="pmi", master_addr="127.0.0.1", master_port=29500)


def test_several_processes_without_local_variables_are_an_error():
    with pytest.raises(
        ConfigError, match="`MPI_LOCALRANKID` is not set, although `PMI_RANK` is. MPI sets both"
    ):
        PMIEnvironment().topology({"PMI_RANK": "0", "PMI_SIZE": "2"})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (SRUN, False),
        (SRUN | {"MPI_LOCALRANKID": "0"}, True),
        (SRUN | {"PMI_RANK": "0"}, True),
        (SRUN | {"PMI_SIZE": "8"}, True),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, True),
        ({}, False),
    ],
)
def test_what_srun_set_for_pmi2_is_left_to_slurm(environ, expected):
    assert PMIEnvironment().detect(environ) is expected
