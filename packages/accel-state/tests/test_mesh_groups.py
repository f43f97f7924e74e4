from __future__ import annotations

import torch.distributed as dist

from accel_state.mesh_groups import _members, build_mesh
from accel_state.mesh_layout import MeshLayout


def test_a_rank_knows_its_own_groups_alone():
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
    return names[0] == names[1], members, first.get_coordinate(), first["a", "c"].mesh.tolist()


def test_each_group_is_made_once(world):
    told = world(4).run(meshes_of_rank)
    assert told[2] == (True, [[0, 2], [2], [2, 3]], (1, 0, 0), [[0, 1], [2, 3]])
    assert all(is_same for is_same, *_ in told)


def whole_mesh_of_rank():
    return build_mesh("cpu", {"all": 2}).get_group() is dist.group.WORLD


def test_an_axis_over_all_ranks_needs_no_group_of_its_own(world):
    assert world(2).run(whole_mesh_of_rank) == [True, True]
