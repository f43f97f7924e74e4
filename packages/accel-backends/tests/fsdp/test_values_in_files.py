"""Values that no rank holds come from safetensors files; each rank reads its own rows."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file, save_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor

from accel_backends.fsdp.apply import RunAxes, shard_model
from accel_backends.fsdp.config import FSDPConfig
from accel_backends.fsdp.groups import shard_groups, whole_parameters
from accel_backends.fsdp.values import FileValues
from accel_ops.named_tensors import named_tensors
from accel_state.errors import AccelError, CheckpointError
from tools.harness.models import make_model


def skeleton(kind, *, real=(), dtype=torch.float32):
    """Return a model on the meta device with real values in some submodules, and all its buffers real."""
    values = make_model(kind, dtype=dtype)
    model = make_model(kind, dtype=dtype).to("meta")
    for name in real:
        model.set_submodule(name, values.get_submodule(name))
    if kind == "tied":
        model.head.weight = model.embed.weight
    if kind == "buffered":
        for name, buffer in values.named_buffers():
            setattr(model, name, buffer)
    return model


def shard(model, files, *, offload=None, ignored=None, **settings):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = whole_parameters(model, named_tensors(model, include_buffers=False), ignored)
    units = [name for name, _ in model.named_modules() if name.rpartition(".")[0].endswith("blocks")]
    shard_model(
        model,
        named_tensors(model),
        shard_groups(model, named_tensors(model, include_buffers=False), units=units, whole=whole),
        FSDPConfig(offload=offload or OffloadPolicy(), files=files, **settings),
        RunAxes(torch.device("cpu"), mesh),
        whole=whole,
    )
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in [*model.named_parameters(), *model.named_buffers()]
    }


def load(
    kind,
    files,
    *,
    real=(),
    real_on_rank_1=False,
    dtype=torch.float32,
    offload=False,
    ignored=None,
    **settings,
):
    model = skeleton(kind, real=real, dtype=dtype)
    if real_on_rank_1 and dist.get_rank() == 1:
        model = make_model(kind, seed=99)
    values = shard(model, files, offload=CPUOffloadPolicy() if offload else None, ignored=ignored, **settings)
    with torch.no_grad():
        outputs = model(torch.ones(2, 7)) if dtype == torch.float32 and not offload else None
    return values, outputs


def error_of(model, files, rank_of_files=None):
    try:
        shard(model, files if rank_of_files in (None, dist.get_rank()) else f"{files}-gone")
    except AccelError as error:
        return str(error), all(found.is_meta for found in model.parameters())
    return None


def failing(kind, files, **options):
    return error_of(skeleton(kind, **options), files)


@pytest.fixture
def save(tmp_path):
    def save(kind, name="model.safetensors", dtype=torch.float32):
        save_model(make_model(kind, dtype=dtype), str(tmp_path / name))
        return tmp_path / name

    return save


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("kind", ["odd", "tied", "buffered", "adapted"])
def test_ranks_read_what_was_saved(world, save, kind, num_ranks):
    expected = make_model(kind)
    for values, outputs in world(num_ranks).run(load, kind, save(kind)):
        for name, value in [*expected.named_parameters(), *expected.named_buffers()]:
            if name != "count":
                assert torch.equal(values[name], value), name
        with torch.no_grad():
            torch.testing.assert_close(outputs, expected(torch.ones(2, 7)), rtol=0, atol=0)


@pytest.mark.parametrize("real_on_rank_1", [False, True])
def test_some_values_come_from_rank_0_and_the_rest_from_files(world, save, real_on_rank_1):
    expected = make_model("odd", seed=8)
    path = save("odd").with_name("other.safetensors")
    save_model(expected, str(path))
    of_rank_0 = make_model("odd")
    for values, _ in world(2).run(
        load, "odd", path, real=("blocks.1", "head"), real_on_rank_1=real_on_rank_1
    ):
        for name, value in values.items():
            is_real = name.startswith(("blocks.1.", "head."))
            assert torch.equal(value, (of_rank_0 if is_real else expected).get_parameter(name)), name


def test_files_of_another_dtype_are_converted(world, save):
    expected = make_model("odd", dtype=torch.bfloat16)
    for values, _ in world(2).run(load, "odd", save("odd", dtype=torch.bfloat16)):
        for name, value in values.items():
            assert value.dtype == torch.float32
            assert torch.equal(value, expected.get_parameter(name).float()), name


def test_master_weights_get_the_precision_of_the_files(world, save):
    expected = make_model("odd")
    policy = MixedPrecisionPolicy(torch.bfloat16)
    found = world(2).run(load, "odd", save("odd"), dtype=torch.bfloat16, policy=policy)
    for values, _ in found:
        assert all(torch.equal(value, expected.get_parameter(name)) for name, value in values.items())


def test_ignored_modules_are_read_unsharded_and_shards_may_be_kept_on_the_cpu(world, save):
    expected = make_model("odd")
    for values, _ in world(2).run(load, "odd", save("odd"), ignored="first", offload=True):
        assert all(torch.equal(value, expected.get_parameter(name)) for name, value in values.items())


def load_own_copy(folder):
    return load("odd", folder / f"{dist.get_rank()}.safetensors")[0]["blocks.0.down.weight"]


def test_a_rank_reads_its_own_rows_only(world, tmp_path):
    state = make_model("odd").state_dict()
    weight = state["blocks.0.down.weight"]
    num_rows = 17  # of 33, on rank 0
    for rank, foreign in enumerate((slice(num_rows, None), slice(num_rows))):
        damaged = weight.clone()
        damaged[foreign] = torch.nan
        save_file({**state, "blocks.0.down.weight": damaged}, tmp_path / f"{rank}.safetensors")
    for found in world(2).run(load_own_copy, tmp_path):
        assert torch.equal(found, weight)


def test_files_that_do_not_fit_are_an_error_that_names_all_before_anything_is_changed(world, tmp_path):
    state = make_model("odd").state_dict()
    state["haed.weight"] = state.pop("head.weight")
    state["head.bias"] = torch.zeros(3)
    save_file(state, tmp_path / "model.safetensors")
    for message, is_unchanged in world(2).run(failing, "odd", tmp_path):
        assert is_unchanged
        assert f"`load_weights_from` is `{tmp_path}`, which does not fit the model:" in message
        assert "`head.bias` has the shape (3,) in the files and (1,) in the model" in message
        assert "on the meta device on rank 0 and not in the files: `head.weight`" in message
        assert "not in the model: `haed.weight`" in message
        assert "Did you mean `head.weight`?" in message


def meta_buffers(files):
    return error_of(make_model("buffered").to("meta"), files)


def test_buffers_that_no_file_can_have_are_named(world, save):
    for message, _ in world(2).run(meta_buffers, save("buffered")):
        assert "not part of a state dict, and so in no file: `offset`" in message
        assert "init_empty_weights(include_buffers=False)" in message
        assert "`mix`" not in message


def only_on_rank_0(files):
    return error_of(skeleton("odd"), files, rank_of_files=0)


def test_files_that_one_rank_has_not_are_an_error_on_all(world, save):
    (of_0, _), (of_1, is_unchanged) = world(2).run(only_on_rank_0, save("odd"))
    assert "which not every rank could open (rank 1: CheckpointError: There is no checkpoint at" in of_0
    assert of_1.startswith("There is no checkpoint at")
    assert is_unchanged


def cut_short(folder):
    model = skeleton("odd")
    path = folder / f"{dist.get_rank()}.safetensors"
    save_model(make_model("odd"), str(path))
    tensors = named_tensors(model)
    values = FileValues(path, tensors, tensors)
    if dist.get_rank() == 1:
        with path.open("r+b") as file:
            file.truncate(200)
    for found in tensors:
        values.fill(found, device=torch.device("cpu"))
    try:
        values.finish()
    except CheckpointError as error:
        return str(error)


def test_a_rank_that_cannot_read_on_is_an_error_on_all(world, tmp_path):
    of_0, of_1 = world(2).run(cut_short, tmp_path)
    assert of_1 == f"`{tmp_path / '1.safetensors'}` ends too early. Copy or save it again."
    assert "which not every rank could read (rank 1: CheckpointError: `" in of_0


def test_values_that_are_nowhere_give_a_hint(world):
    for message, _ in world(2).run(failing, "odd", None):
        assert "`first.weight` has no values on rank 0: it is on the meta device" in message
        assert "FullyShardedDataParallelPlugin(load_weights_from=folder)" in message


def unused(files):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("accel_backends.fsdp.values")
    logger.addHandler(handler)
    try:
        shard(make_model("odd"), files)
    finally:
        logger.removeHandler(handler)
    return said


def test_files_that_nothing_needs_are_reported(world, save):
    (said,), _ = world(2).run(unused, save("odd"))
    assert "`load_weights_from` has no effect on the Odd: rank 0 has all its values" in said
