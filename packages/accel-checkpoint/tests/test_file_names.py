import pytest

from accel_checkpoint import file_names as layout


@pytest.mark.parametrize(
    "name",
    [
        "accel_checkpoint.json",
        "model.safetensors",
        "model_12.safetensors",
        "model_1-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model_1.bin.index.json",
        "optimizer.bin",
        "optimizer_3.bin",
        "scheduler.bin",
        "sampler_1.bin",
        "dl_state_dict.bin",
        "dl_state_dict_0_rank_3.bin",
        "scaler.pt",
        "random_states_11.pkl",
        "custom_checkpoint_0.pkl",
        "accumulated_gradients_1.safetensors",
        "pytorch_model_fsdp_rank0.bin",
        "pytorch_model_fsdp_1_rank12.bin",
        "optimizer_rank1.bin",
    ],
)
def test_files_of_a_checkpoint_are_known(name):
    assert layout.is_checkpoint_file(name)


@pytest.mark.parametrize(
    "name", ["notes.txt", "my_model.safetensors", "optimizer.bin.old", "model.py", "x/optimizer.bin"]
)
def test_files_of_the_user_are_not_checkpoint_files(name):
    assert not layout.is_checkpoint_file(name)


def test_numbers_are_read_from_names():
    names = [
        "optimizer.bin",
        "optimizer_2.bin",
        "scheduler.bin",
        "model_1.safetensors",
        "random_states_10.pkl",
    ]
    assert layout.OPTIMIZERS.numbers(names) == [0, 2]
    assert layout.numbers_of_models(names) == [1]
    assert layout.RANDOM_STATES.numbers(names) == [10]


def test_files_of_ranks_are_not_those_of_whole_states():
    names = [layout.OPTIMIZERS_OF_RANKS.name(index, rank) for index in (0, 2) for rank in (0, 11)]
    assert names == [
        "optimizer_rank0.bin",
        "optimizer_rank11.bin",
        "optimizer_2_rank0.bin",
        "optimizer_2_rank11.bin",
    ]
    assert layout.OPTIMIZERS_OF_RANKS.numbers(names) == [0, 2]
    assert layout.OPTIMIZERS_OF_RANKS.ranks(2, names) == [0, 11]
    assert layout.OPTIMIZERS.numbers(names) == layout.numbers_of_models(names) == []


def test_folders_are_ordered_by_number():
    assert [
        layout.checkpoint_number(name) for name in ("checkpoint_9", "checkpoint_10", "checkpoint_x", "x")
    ] == [
        9,
        10,
        None,
        None,
    ]


def test_shards_of_a_later_model_have_its_number():
    names = layout.weight_format(1, safe=True)
    assert (names.whole, names.index) == ("model_1.safetensors", "model_1.safetensors.index.json")
    assert names.shard(2, num_shards=3) == "model_1-00002-of-00003.safetensors"
