"""`MeshLayout`: numbers, coordinates and groups of ranks, by tables, and without torch."""

import math
import subprocess
import sys

import pytest

from accel_state.errors import ConfigError, UnknownNameError
from accel_state.mesh_layout import AXES, DATA_AXES, EXPERT_AXES, LOSS_AXES, SHARD_AXES, MeshLayout


@pytest.mark.parametrize(
    ("sizes", "world_size", "num_data_ranks", "num_loss_ranks", "num_param_shards", "num_seeds"),
    [
        ({}, 1, 1, 1, 1, 1),
        ({"dp_replicate": 8}, 8, 8, 8, 1, 8),
        ({"dp_shard": 8}, 8, 8, 8, 8, 8),
        ({"dp_replicate": 2, "dp_shard": 4}, 8, 8, 8, 4, 8),
        ({"tp": 8}, 8, 1, 1, 1, 1),
        ({"cp": 8}, 8, 1, 8, 8, 1),
        ({"sp": 4}, 4, 1, 4, 4, 1),
        ({"pp": 4}, 4, 1, 1, 1, 4),
        ({"pp": 2, "dp_shard": 2, "tp": 2}, 8, 2, 2, 2, 4),
        ({"pp": 4, "dp_replicate": 2, "dp_shard": 8, "cp": 4, "tp": 16}, 4096, 16, 64, 32, 64),
        ({"dp_shard": 64, "sp": 8, "tp": 8, "ep": 512}, 4096, 64, 512, 512, 64),
    ],
)
def test_numbers_of_ranks(sizes, world_size, num_data_ranks, num_loss_ranks, num_param_shards, num_seeds):
    layout = MeshLayout(**sizes)
    assert layout.world_size == world_size
    assert layout.num_data_ranks == num_data_ranks
    assert layout.num_loss_ranks == num_loss_ranks
    assert layout.num_param_shards == num_param_shards
    assert layout.num_seeds == num_seeds


@pytest.mark.parametrize(
    ("sizes", "data", "loss", "shards", "seeds"),
    [
        ({"dp_replicate": 4}, "0123", "0123", "0000", "0123"),
        ({"dp_shard": 4}, "0123", "0123", "0123", "0123"),
        ({"tp": 4}, "0000", "0000", "0000", "0000"),
        ({"cp": 4}, "0000", "0123", "0123", "0000"),
        ({"pp": 4}, "0000", "0000", "0000", "0123"),
        ({"dp_shard": 2, "tp": 2}, "0011", "0011", "0011", "0011"),
        ({"dp_shard": 2, "cp": 2}, "0011", "0123", "0123", "0011"),
        ({"pp": 2, "dp_shard": 2}, "0101", "0101", "0101", "0123"),
        ({"pp": 2, "tp": 2}, "0000", "0000", "0000", "0011"),
        ({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, "00112233", "00112233", "00110011", "00112233"),
        ({"pp": 2, "dp_shard": 2, "cp": 2}, "00110011", "01230123", "01230123", "00112233"),
    ],
)
def test_who_is_who(sizes, data, loss, shards, seeds):
    layout = MeshLayout(**sizes)
    ranks = range(layout.world_size)
    assert "".join(str(layout.index(rank, *DATA_AXES)) for rank in ranks) == data
    assert "".join(str(layout.index(rank, *LOSS_AXES)) for rank in ranks) == loss
    assert "".join(str(layout.index(rank, *SHARD_AXES)) for rank in ranks) == shards
    assert "".join(str(layout.seed_index(rank)) for rank in ranks) == seeds


def test_neighbours_in_rank_are_neighbours_on_the_last_axis():
    layout = MeshLayout(pp=2, dp_replicate=2, dp_shard=3, cp=2, tp=2)
    assert layout.coordinate(0) == {"pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "sp": 0, "tp": 0}
    assert layout.coordinate(1) == {"pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "sp": 0, "tp": 1}
    assert layout.coordinate(2)["cp"] == 1
    assert layout.coordinate(4)["dp_shard"] == 1
    assert layout.coordinate(12)["dp_replicate"] == 1
    assert layout.coordinate(47) == {"pp": 1, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "sp": 0, "tp": 1}


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        (("tp",), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (("dp_shard",), [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (("pp",), [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (("dp_shard", "tp"), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (("tp", "pp"), [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (("cp",), [(rank,) for rank in range(8)]),
        (AXES, [tuple(range(8))]),
        ((), [(rank,) for rank in range(8)]),
    ],
)
def test_groups_by_axes(axes, groups):
    layout = MeshLayout(pp=2, dp_shard=2, tp=2)
    assert list(layout.groups(*axes)) == groups
    for rank in range(8):
        [own] = [group for group in groups if rank in group]
        assert layout.group_of(rank, *axes) == own


def test_experts_are_distributed_over_the_ranks_of_one_stage_of_one_replica():
    layout = MeshLayout(pp=2, dp_shard=2, tp=2, ep=2)
    assert layout.expert_sizes == {"pp": 2, "dp_replicate": 1, "edp_shard": 2, "ep": 2}
    assert layout.groups("ep") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.groups("edp_shard") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert MeshLayout(dp_shard=2, tp=2, ep=4).groups("ep") == ((0, 1, 2, 3),)
    assert {axis: layout.index(6, axis) for axis in EXPERT_AXES} == {
        "pp": 1,
        "dp_replicate": 0,
        "edp_shard": 1,
        "ep": 0,
    }
    assert layout.size("pp", "ep") == 4


@pytest.mark.parametrize(
    "sizes",
    [
        {"dp_replicate": 4096},
        {"tp": 4096},
        {"pp": 4, "dp_replicate": 2, "dp_shard": 8, "cp": 4, "tp": 16},
        {"pp": 3, "dp_shard": 5, "sp": 7, "tp": 11, "ep": 55},
        {"pp": 8, "dp_replicate": 8, "dp_shard": 8, "cp": 2, "sp": 2, "tp": 2, "ep": 4},
    ],
)
@pytest.mark.parametrize(
    "axes", [("tp",), ("dp_replicate", "dp_shard"), ("dp_shard", "cp", "sp"), ("pp", "tp"), ("ep",)]
)
def test_groups_of_large_runs_cover_every_rank_once(sizes, axes):
    layout = MeshLayout(**sizes)
    groups = layout.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    assert {len(group) for group in groups} == {layout.size(*axes)}
    assert layout.indices(*axes) == tuple(layout.index(rank, *axes) for rank in range(layout.world_size))
    for group in (groups[0], groups[len(groups) // 2], groups[-1]):
        assert [layout.index(rank, *axes) for rank in group] == list(range(len(group)))
        some = (group[0], group[len(group) // 2], group[-1])
        assert {layout.group_of(rank, *axes) for rank in some} == {group}


def test_coordinates_of_large_runs_are_all_different():
    layout = MeshLayout(pp=4, dp_replicate=2, dp_shard=8, cp=4, tp=16, ep=32)
    places = [layout.coordinate(rank) for rank in range(layout.world_size)]
    assert len({tuple(place.values()) for place in places}) == 4096 == math.prod(layout.sizes.values())
    assert len({tuple(layout.index(rank, axis) for axis in EXPERT_AXES) for rank in range(4096)}) == 4096
    assert sorted({layout.index(rank, *DATA_AXES) for rank in range(4096)}) == list(range(16))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 0}, "`tp` must be a whole number of at least 1, got 0"),
        ({"cp": 2.0}, "`cp` must be a whole number of at least 1, got 2.0"),
        ({"pp": True}, "`pp` must be a whole number of at least 1, got True"),
        ({"dp_replicate": 4, "tp": 2, "ep": 4}, r"`ep` must divide .*, which is 2, got 4"),
    ],
)
def test_wrong_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        MeshLayout(**sizes)


def test_a_rank_outside_of_the_run_is_refused():
    with pytest.raises(ConfigError, match="`rank` must lie between 0 and 3, got 4"):
        MeshLayout(tp=4).coordinate(4)


def test_an_unknown_axis_is_named():
    with pytest.raises(UnknownNameError, match="Unknown axis `tpp`.*Did you mean `tp`"):
        MeshLayout(tp=2).groups("tpp")


def test_axes_of_two_views_do_not_mix():
    with pytest.raises(ConfigError, match="`tp` and `ep` belong to different views of the ranks"):
        MeshLayout(tp=2, ep=2).size("tp", "ep")


def test_nothing_but_a_mesh_needs_torch():
    code = (
        "import sys; from accel_state.mesh_layout import DATA_AXES, MeshLayout; "
        "layout = MeshLayout(pp=4, dp_shard=64, tp=16); layout.groups('tp'); layout.index(4095, *DATA_AXES); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def ranks_along(sizes, *names):
    """Return for each name the ranks that this one communicates with along it."""
    import torch.distributed as dist

    layout = MeshLayout(**sizes)
    mesh = layout.mesh("cpu")
    seen = {name: dist.get_process_group_ranks(mesh[name].get_group()) for name in names}
    if layout.ep > 1:
        expert = layout.expert_mesh("cpu")
        seen |= {axis: dist.get_process_group_ranks(expert[axis].get_group()) for axis in ("edp_shard", "ep")}
    return mesh.mesh_dim_names, seen


def test_the_mesh_has_the_groups_of_the_layout(world):
    sizes = {"dp_shard": 2, "tp": 2, "ep": 4}
    layout = MeshLayout(**sizes)
    for rank, (names, seen) in enumerate(
        world(4).run(ranks_along, sizes, "dp_shard", "tp", "pp", "dp", "loss")
    ):
        assert names == AXES
        for axis in ("dp_shard", "tp", "pp", "edp_shard", "ep"):
            assert tuple(seen[axis]) == layout.group_of(rank, axis)
        assert tuple(seen["dp"]) == layout.group_of(rank, "dp_replicate", "dp_shard")
        assert tuple(seen["loss"]) == layout.group_of(rank, "dp_replicate", "dp_shard", "cp", "sp")
