"""A sharded run may begin with a model whose weights are on no rank, on rank 0, or on all: it trains the same."""

import pytest
import torch
from safetensors.torch import save_model
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel_bigmodel import init_empty_weights
from accel_state.errors import CheckpointError, ConfigError
from tools.harness.models import make_batches, make_model

SOURCES = ["real", "rank 0", "files", "mixed"]


def make(kind, source, rank):
    """Return the model as a script would build it on this rank."""
    if source == "real" or (source == "rank 0" and rank == 0):
        return make_model(kind)
    with init_empty_weights(include_buffers=source == "rank 0"):
        model = make_model(kind)
    if source == "mixed" and rank == 0:
        real = make_model(kind)
        model.set_submodule("blocks.0", real.blocks[0])
    return model


def train(kind, source, files, precision="no", late_optimizer=False, tp_size=1, **plugin):
    if source in ("files", "mixed"):
        plugin["load_weights_from"] = files
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **plugin),
        parallelism_config=ParallelismConfig(tp_size=tp_size) if tp_size > 1 else None,
    )
    model = make(kind, source, accelerator.process_index)
    if late_optimizer:
        model = accelerator.prepare(model)
        optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.01))
    else:
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for rows in make_batches(3):
        accelerator.backward(model(rows).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    values = [*model.named_parameters(), *model.named_buffers()]
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in values}


@pytest.fixture
def saved(tmp_path):
    def saved(kind):
        save_model(make_model(kind), str(tmp_path / "model.safetensors"))
        return tmp_path

    return saved


@pytest.mark.parametrize("kind", ["odd", "tied", "buffered", "adapted"])
def test_where_the_weights_come_from_makes_no_difference(world, saved, kind):
    files = saved(kind)
    expected, _ = world(2).run(train, kind, "real", files)
    for source in SOURCES[1:] if kind != "adapted" else ["files"]:
        for state in world(2).run(train, kind, source, files):
            assert list(state) == list(expected)
            assert all(torch.equal(value, expected[name]) for name, value in state.items())


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16"},
        {"late_optimizer": True},
        {"activation_checkpointing": True},
        {"cpu_offload": True},
    ],
    ids=str,
)
def test_weights_from_files_meet_the_other_settings(world, saved, options):
    files = saved("odd")
    expected, _ = world(2).run(train, "odd", "real", files, **options)
    for state in world(2).run(train, "odd", "files", files, **options):
        assert all(torch.equal(value, expected[name]) for name, value in state.items())


def test_one_process_reads_files_too(world, saved):
    files = saved("tied")
    (expected,), (state,) = (world(1).run(train, "tied", source, files) for source in ("real", "files"))
    assert all(torch.equal(value, expected[name]) for name, value in state.items())


def test_a_sharded_checkpoint_of_save_model_is_read(world, tmp_path):
    expected, _ = world(2).run(train, "odd", "real", None)
    Accelerator(cpu=True).save_model(make_model("odd"), tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    for state in world(2).run(train, "odd", "files", tmp_path):
        assert all(torch.equal(value, expected[name]) for name, value in state.items())


def message_of(kind, source, files):
    try:
        train(kind, source, files)
    except (ConfigError, CheckpointError) as error:
        return str(error)


def test_weights_that_are_nowhere_and_files_of_another_model_are_errors_on_every_rank(world, saved):
    for message in world(2).run(message_of, "odd", "files", None):
        assert "`first.weight` has no values on rank 0" in message
        assert "load_weights_from=folder" in message
    for message in world(2).run(message_of, "odd", "files", saved("tied")):
        assert "does not fit the model" in message
        assert "`head.weight` has the shape (19, 10) in the files and (1, 33) in the model" in message


def test_the_field_is_a_path():
    with pytest.raises(
        ConfigError, match="`load_weights_from` must be the path of a safetensors file.*got 3"
    ):
        FullyShardedDataParallelPlugin(fsdp_version=2, load_weights_from=3)


def test_tp_ranks_read_their_columns_and_blocks(world, saved):
    options = {"precision": "bf16", "tp_size": 2}
    expected, _ = world(2).run(train, "shared-packed", "real", None, **options)
    [alone] = world(1).run(train, "shared-packed", "real", None, precision="bf16")
    for name, value in alone.items():
        # AdamW moves each value by 0.01 a step, the other way where bf16 rounds a gradient to another sign. The bias
        # of keys has no gradient but such signs.
        if not name.endswith("packed.bias"):
            assert (expected[name] - value).abs().mean() < 0.005
    for source in ("rank 0", "files"):
        for found in world(2).run(train, "shared-packed", source, saved("shared-packed"), **options):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def fill(module):
    module.to_empty(device="cpu", recurse=False)
    for value in module.parameters(recurse=False):
        torch.nn.init.constant_(value, 0.25)


def leave(module):
    pass


def initialized_by_function(init):
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(param_init_fn=init))
    with torch.device("meta"):
        model = make_model("tied")
    return accelerator.get_state_dict(accelerator.prepare(model))


def test_models_on_the_meta_device_get_their_values_from_the_function(world):
    state, _ = world(2).run(initialized_by_function, fill)
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    assert all(torch.equal(value, torch.full_like(value, 0.25)) for value in state.values())


def test_a_function_that_leaves_values_out_is_named(world):
    with pytest.raises(ConfigError, match=r"`param_init_fn` left `blocks.0.norm.weight` on the meta device"):
        world(1).run(initialized_by_function, leave)
