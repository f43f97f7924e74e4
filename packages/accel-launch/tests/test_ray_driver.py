from __future__ import annotations

from accel_launch.ray_driver import Place, in_order


def place(node: str, *gpus: str) -> Place:
    return Place(
        node,
        f"address-{node}",
        gpus=gpus,
        gpu_variable="CUDA_VISIBLE_DEVICES" if gpus else None,
    )


def test_ranks_are_numbered_node_by_node():
    ranks = in_order([place("a"), place("b"), place("a")])
    assert [actor for actor, _ in ranks] == [0, 2, 1]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE")
    assert [[environ[name] for name in names] for _, environ in ranks] == [
        ["0", "0", "2", "0", "2", "3"],
        ["1", "1", "2", "0", "2", "3"],
        ["2", "0", "1", "1", "2", "3"],
    ]


def test_the_local_rank_is_the_place_of_its_gpu_among_those_that_all_ranks_of_a_node_see():
    ranks = in_order([place("a", "10"), place("a", "9"), place("b", "3")])
    assert [actor for actor, _ in ranks] == [1, 0, 2]
    assert [environ["CUDA_VISIBLE_DEVICES"] for _, environ in ranks] == ["9,10", "9,10", "3"]


def test_without_gpus_no_variable_chooses_among_them():
    ((_, environ),) = in_order([place("a")])
    assert "CUDA_VISIBLE_DEVICES" not in environ
