"""Ranks that were started with different numbers, or on one GPU, end with words before they form a process group."""

import json
import socket
from unittest import mock

import pytest
import torch.distributed as dist

from accel_state.devices import device_backend
from accel_state.environment import clear_environment, patch_environment, variable
from accel_state.errors import ConfigError, LaunchError
from accel_state.process_group import set_up_group
from accel_state.runtime import reset_runtime
from accel_state.topology import Topology
from tools.harness.scripts import start_ranks
from tools.harness.vendor_modules import vendor_module

STARTED = """
import datetime, json, os, sys
os.environ.update(json.loads(sys.argv[1])[int(os.environ["RANK"])])
from accel_state import PartialState
PartialState(cpu=True, timeout=datetime.timedelta(seconds=float(sys.argv[2])))
"""


def errors_of_ranks(*variables, timeout_s=60):
    """Return what each rank wrote to standard error, started with these variables."""
    with start_ranks(["-c", STARTED, json.dumps(variables), str(timeout_s)], len(variables)) as ranks:
        assert [rank.process.wait(60) for rank in ranks] == [1] * len(variables)
        return [rank.stderr for rank in ranks]


def test_machines_started_with_different_numbers_of_processes_all_end_and_name_the_flag():
    two = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    for errors in errors_of_ranks(two, two, {"RANK": "3", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "6"}):
        assert f"ConfigError: Rank 0 on `{socket.gethostname()}` (process " in errors
        assert "was started with `--num_processes 4` (`WORLD_SIZE`), but rank 3 on" in errors
        assert "with `--num_processes 6` (`WORLD_SIZE`). Use the same on all machines" in errors


def test_machines_started_with_different_numbers_of_machines_all_end_and_name_the_flag():
    one = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2"}
    other = {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "3",
    }
    for errors in errors_of_ranks(one, {**other, "GROUP_RANK": "1"}):
        assert "`--num_machines 2` (`GROUP_WORLD_SIZE`), but rank 2 on" in errors
        assert "`--num_machines 3` (`GROUP_WORLD_SIZE`). Use the same on all machines" in errors


def test_ranks_that_different_numbers_start_twice_name_the_flag():
    first = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    of_four, of_two = {**first, "RANK": "1"}, {**first, "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    for errors in errors_of_ranks(first, of_four, of_two):
        assert "was started twice" not in errors
        assert "`--num_processes 2` (`WORLD_SIZE`)" in errors
        assert "`--num_processes 4` (`WORLD_SIZE`)" in errors


def test_two_machines_of_one_machine_rank_all_end_and_name_the_flag():
    one = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for errors in errors_of_ranks(one, one, {**one, "RANK": "1"}):
        assert "Rank 1 was started twice, on" in errors
        assert "`--machine_rank`" in errors


def test_a_rank_that_does_not_arrive_is_named():
    alone = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    for errors in errors_of_ranks(alone, alone, timeout_s=1):
        assert LaunchError.__name__ in errors
        assert "waited 1 s for 3 ranks; these did not arrive: 2." in errors


def set_up_on_gpus(port, *, num_gpus, hosts, shared=""):
    """Set up a group as ranks do that see ``num_gpus`` GPUs; return the device, and the host in NCCL's eyes."""
    dist.destroy_process_group()
    reset_runtime(keep_process_group=True)
    rank, backend = int(variable("RANK")), device_backend("cuda")
    world_size = len(hosts)
    topology = Topology(rank, world_size, rank, world_size, master_addr="127.0.0.1", master_port=port)
    name_of_host = mock.patch.object(socket, "gethostname", return_value=hosts[rank])
    settings = {"ACCEL_SHARE_GPUS": shared} if shared else {}
    with vendor_module("cuda") as module, clear_environment(), patch_environment(**settings), name_of_host:
        module.device_count = lambda: num_gpus
        device = backend.place(topology)
        set_up_group(topology, backend="gloo", options={}, claim=backend.claim(device, topology))
        return str(device), variable("NCCL_HOSTID")


def refusal_on_gpus(*args, **kwargs):
    with pytest.raises(ConfigError) as error:
        set_up_on_gpus(*args, **kwargs)
    return str(error.value)


@pytest.fixture
def port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


def test_two_ranks_that_see_one_gpu_end_before_the_first_collective(world, port):
    for words in world(2).run(refusal_on_gpus, port, num_gpus=1, hosts="aa"):
        assert "Ranks 0 and 1 would run on one GPU, `a " in words
        assert "GPU-10`" in words
        for hint in ("`--num_processes 1`", "`--cpu`", "`--share_gpus`"):
            assert hint in words


def test_gpus_of_several_hosts_are_different_whatever_their_names(world, port):
    assert world(2).run(set_up_on_gpus, port, num_gpus=1, hosts="ab") == [("cuda:0", None)] * 2


def test_each_rank_has_its_own_gpu_where_there_are_enough(world, port):
    assert world(2).run(set_up_on_gpus, port, num_gpus=2, hosts="aa") == [("cuda:0", None), ("cuda:1", None)]


def test_ranks_that_share_gpus_take_them_in_turn_and_claim_different_hosts(world, port):
    shared = world(3).run(set_up_on_gpus, port, num_gpus=2, hosts="aaa", shared="true")
    assert shared == [("cuda:0", "rank0"), ("cuda:1", "rank1"), ("cuda:0", "rank2")]
