from __future__ import annotations

from accel_launch.ray.placement import Place, placed_ranks


def place(node: str, *gpus: str) -> Place:
    return Place(node, f"address-{node}", f"host-{node}", gpus, "CUDA_VISIBLE_DEVICES" if gpus else None)


def test_ranks_are_numbered_node_by_node():
    ranks = placed_ranks([place("a"), place("b"), place("a")])
    assert [(rank.actor, rank.place.node) for rank in ranks] == [(0, "a"), (2, "a"), (1, "b")]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE")
    assert [[rank.environ[name] for name in names] for rank in ranks] == [
        ["0", "0", "2", "0", "2", "3"],
        ["1", "1", "2", "0", "2", "3"],
        ["2", "0", "1", "1", "2", "3"],
    ]


def test_the_local_rank_is_the_place_of_its_gpu_among_those_that_all_ranks_of_a_node_see():
    ranks = placed_ranks([place("a", "10"), place("a", "9"), place("b", "3")])
    assert [rank.actor for rank in ranks] == [1, 0, 2]
    assert [rank.environ["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["9,10", "9,10", "3"]


def test_without_gpus_no_variable_chooses_among_them():
    assert "CUDA_VISIBLE_DEVICES" not in placed_ranks([place("a")])[0].environ
