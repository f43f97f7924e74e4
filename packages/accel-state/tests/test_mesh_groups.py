from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from accel_state.environment import variable
from accel_state.mesh_groups import _members, build_mesh
from accel_state.mesh_layout import MeshLayout
from accel_state.partial_state import PartialState
from accel_state.runtime import reset_runtime
from tools.harness.scripts import run_script


def test_a_rank_knows_only_its_groups():
    layout = MeshLayout(dp_replicate=3, dp_shard=4, tp=5)
    for rank in (0, 17, 59):
        assert _members(rank, (3, 4, 5)) == [
            layout.group_of(rank, axis) for axis in ("dp_replicate", "dp_shard", "tp")
        ]


def meshes_of_rank():
    sizes = {"a": 2, "b": 1, "c": 2}
    first, second = build_mesh("cpu", sizes), build_mesh("cpu", sizes)
    names = [[mesh.get_group(axis).group_name for axis in sizes] for mesh in (first, second)]
    members = [dist.get_process_group_ranks(first.get_group(axis)) for axis in sizes]
    return names[0] == names[1], members, tuple(first.get_coordinate()), first["a", "c"].mesh.tolist()


def test_each_group_is_made_once(world):
    told = world(4).run(meshes_of_rank)
    assert told[2] == (True, [[0, 2], [2], [2, 3]], (1, 0, 0), [[0, 1], [2, 3]])
    assert all(is_same for is_same, *_ in told)


def whole_mesh_of_rank():
    return build_mesh("cpu", {"all": 2}).get_group() is dist.group.WORLD


def test_an_axis_over_all_ranks_needs_no_group_of_its_own(world):
    assert world(2).run(whole_mesh_of_rank) == [True, True]


def groups_of_a_second_run(meeting_point, is_ended_by_torch):
    layout, state = MeshLayout(dp_replicate=2, dp_shard=2), PartialState()
    layout.mesh("cpu")
    (dist if is_ended_by_torch else state).destroy_process_group()
    rank = state.process_index
    reset_runtime()
    PartialState(cpu=True, init_method=f"file://{meeting_point}", rank=rank, world_size=4)
    dist.new_group()  # groups are numbered, and this takes the number of one of the first run
    mesh = layout.mesh("cpu")
    groups = {name: mesh[name].get_group() for name in ("dp", "dp_shard_cp", "loss")}
    for group in groups.values():
        dist.barrier(group)
    return {name: dist.get_process_group_ranks(group) for name, group in groups.items()}


@pytest.mark.parametrize("is_ended_by_torch", [False, True])
def test_a_second_run_in_the_same_processes_has_separate_groups(world, tmp_path, is_ended_by_torch):
    told = world(4).run(groups_of_a_second_run, tmp_path / "meet", is_ended_by_torch)
    for rank, groups in enumerate(told):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert groups == {"dp": [0, 1, 2, 3], "dp_shard_cp": pair, "loss": [0, 1, 2, 3]}


COUNT_GROUPS = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from accel_state.parallelism_config import ParallelismConfig
real, num_calls = dist.new_group, 0
def counting(*args, **options):
    global num_calls
    num_calls += 1
    return real(*args, **options)
dist.new_group = device_mesh.new_group = counting
for num_ranks in (48, 4800):
    dist.init_process_group("fake", rank=7, world_size=num_ranks, store=FakeStore())
    num_calls = 0
    sizes = {"dp_replicate_size": num_ranks // 24, "dp_shard_size": 4, "tp_size": 3}
    mesh = ParallelismConfig(**sizes, cp_size=2).build_device_mesh("cpu")
    pairs = mesh["dp_shard_cp", "tp"].shape
    ranks = dist.get_process_group_ranks(mesh["dp_shard_cp"].get_group())
    print(num_calls, device_mesh.new_group is counting, ranks, *pairs)
    dist.destroy_process_group()
"""


def test_the_number_of_groups_does_not_grow_with_the_number_of_ranks(tmp_path):
    script = tmp_path / "count.py"
    script.write_text(COUNT_GROUPS)
    few, many = run_script(script).stdout.splitlines()
    assert few == many == "7 True [1, 4, 7, 10, 13, 16, 19, 22] 8 3"


def multiply_in_two_runs(meeting_point):
    results = []
    for run in range(2):
        rank = int(variable("RANK"))
        PartialState().destroy_process_group()
        reset_runtime()
        PartialState(cpu=True, init_method=f"file://{meeting_point}-{run}", rank=rank, world_size=4)
        for _ in range(3 * run):
            dist.new_group()  # the groups of the second mesh get other numbers than those of the first
        mesh = build_mesh("cpu", {"a": 2, "b": 2})
        matrix = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0), Shard(1)])
        results.append((matrix @ matrix.T).full_tensor().sum().item())
    return results


def test_a_second_run_communicates_in_its_own_groups(world, tmp_path):
    assert world(4).run(multiply_in_two_runs, tmp_path / "meet") == [[3680.0, 3680.0]] * 4
