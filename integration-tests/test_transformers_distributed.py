"""Models that transformers has distributed over the ranks are trained as they are, or refused with the reason."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.planning.collectives import counted_collectives
from accel.planning.step import Step, planned_step
from accel_backends import resolve_plan
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]
TOKENS = torch.arange(32).reshape(4, 8) % 29


@pytest.fixture
def pretrained(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=50, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=40, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def distributed(folder, **sizes):
    from transformers.distributed import DistributedConfig

    return transformers.LlamaForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(**sizes)
    )


def trained(model, *, num_steps=2, num_parts=2):
    """Train as plain torch does, on batches in so many parts; return losses with norms, and the state."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(num_steps):
        loss = sum(model(rows, labels=rows).loss for rows in TOKENS.chunk(num_parts)) / num_parts
        loss.backward()
        found.append((loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()))
        optimizer.step()
        optimizer.zero_grad()
    return found, dict(model.state_dict())


def train(folder):
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    model = distributed(folder, fsdp_size=2)
    before = model
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model is before
    for _ in range(2):
        rows = TOKENS[2 * accelerator.process_index :][:2]
        accelerator.backward(model(rows, labels=rows).loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return norm.item(), accelerator.get_state_dict(model)


def test_a_model_that_transformers_sharded_is_left_unchanged_and_trained_like_one_process(world, pretrained):
    model, folder = pretrained
    (found, state), (of_other, _) = world(2).run(train, folder)
    expected, after = trained(model)
    assert found == of_other == pytest.approx(expected[-1][1], rel=1e-5)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-6)


def refusal(folder, version, sizes):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version) if version else None
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = distributed(folder, **sizes)
    with pytest.raises(ConfigError) as caught:
        accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    return str(caught.value)


def test_a_model_whose_mesh_contradicts_the_layout_is_refused_with_both(world, pretrained):
    same = "spread over 2 ranks (`tp`) before: the 2 ranks of `tp` must read the same batches. This run gives each of 2"
    for version, sizes, part in [
        (2, {"tp_size": 2}, same),
        (None, {"tp_size": 2}, same),
        (None, {"fsdp_size": 2}, "2 ranks (`fsdp`) before, and the strategy `ddp` trains whole models"),
    ]:
        for message in world(2).run(refusal, pretrained[1], version, sizes):
            assert part in message


def refusal_on_a_mesh(folder):
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2))
    mesh = accelerator.torch_device_mesh["tp"]
    model = transformers.LlamaForCausalLM.from_pretrained(folder, tp_plan="auto", device_mesh=mesh)
    with pytest.raises(ConfigError) as caught:
        accelerator.prepare(model)
    return str(caught.value)


def test_a_mesh_that_transformers_ignores_is_refused_with_what_it_takes(world, pretrained):
    for message in world(4).run(refusal_on_a_mesh, pretrained[1]):
        assert "spread over 4 ranks (`tp`)" in message
        assert "`distributed_config=DistributedConfig(tp_size=2, fsdp_size=2)`" in message


def tiny(kind, *, num_key_values=2, is_tied=False):
    """Return a model with fewer heads for keys and values than for queries, and a vocabulary that 2 does not divide."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=num_key_values, vocab_size=41, tie_word_embeddings=is_tied, pad_token_id=0,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def train_layers(kind, is_tied, sizes, folder=None, num_key_values=2):
    """Train a model whose layers are sharded; transformers has sharded it if it is in a folder."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes) if sizes else None)
    model = (
        distributed(folder, tp_size=2)
        if folder
        else tiny(kind, is_tied=is_tied, num_key_values=num_key_values)
    )
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for _ in range(2):
        loss = model(TOKENS, labels=TOKENS).loss
        accelerator.backward(loss)
        found.append((loss.item(), accelerator.clip_grad_norm_(model.parameters(), 0.5).item()))
        optimizer.step()
        optimizer.zero_grad()
    return found, accelerator.get_state_dict(model)


@pytest.mark.parametrize(
    ("kind", "is_tied", "num_key_values"),
    [("Llama", True, 1), ("Qwen3", False, 2)],
)
def test_ranks_shard_the_layers_that_a_model_of_transformers_names(world, kind, is_tied, num_key_values):
    """Also where there are fewer heads for keys and values than ranks."""
    [(expected, alone)] = world(1).run(train_layers, kind, is_tied, None, None, num_key_values)
    two = world(2).run(train_layers, kind, is_tied, {"tp_size": 2}, None, num_key_values)
    (found, state), (of_other, _) = two
    assert found == of_other
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(state, dict(alone), rtol=0, atol=1e-6)


def test_layers_that_transformers_has_sharded_are_left_as_they_are(world, pretrained):
    model, folder = pretrained
    (found, state), (of_other, _) = world(2).run(train_layers, "Llama", False, {"tp_size": 2}, folder)
    expected, after = trained(model, num_parts=1)
    assert found == of_other
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-6)


def train_as_the_trainer_does(folder, sizes):
    """The model stays as it is, and the optimizer is prepared without it."""
    layers = {"tp_size": 2, "dp_shard_size": 1} if "tp_size" in sizes else None
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**layers) if layers else None)
    model = distributed(folder, **sizes)
    assert accelerator.prepare_model(model, device_placement=False, evaluation_mode=True) is model
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    rows, found = TOKENS if layers else TOKENS[2 * accelerator.process_index :][:2], []
    for _ in range(2):
        loss = model(rows, labels=rows).loss
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
        found.append((accelerator.reduce(loss.detach(), "mean").item(), float(norm)))
        optimizer.step()
        optimizer.zero_grad()
    state = model.state_dict()
    return found, {
        name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in state.items()
    }


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"fsdp_size": 2}], ids=["tp", "fsdp"])
def test_the_optimizer_of_a_model_that_transformers_sharded_is_prepared_separately(world, pretrained, sizes):
    model, folder = pretrained
    (found, state), (of_other, _) = world(2).run(train_as_the_trainer_does, folder, sizes)
    expected, after = trained(model, num_parts=1)
    assert found == of_other
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-6)


def dtype_inside(folder, sizes, evaluation_mode):
    layers = {"tp_size": 2, "dp_shard_size": 1} if "tp_size" in sizes else None
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16", parallelism_config=ParallelismConfig(**layers) if layers else None
    )
    model = distributed(folder, **sizes)
    inside = []
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, inputs, output: inside.append(output.dtype)
    )
    for _ in range(2):  # a second time changes nothing
        model = accelerator.prepare_model(model, device_placement=False, evaluation_mode=evaluation_mode)
    assert model(TOKENS).logits.dtype == torch.float32
    return inside


@pytest.mark.parametrize(
    ("sizes", "evaluation_mode"), [({"tp_size": 2}, True), ({"tp_size": 2}, False), ({"fsdp_size": 2}, True)]
)
def test_a_model_that_transformers_sharded_computes_in_the_precision_of_the_run(
    world, pretrained, sizes, evaluation_mode
):
    assert world(2).run(dtype_inside, pretrained[1], sizes, evaluation_mode) == [[torch.bfloat16]] * 2


def collectives_of_layers():
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=4))
    model = accelerator.prepare(tiny("Llama"))
    with counted_collectives() as counted:
        accelerator.backward(model(TOKENS, labels=TOKENS).loss)
    found = Counter()
    for (kind, _, size), count in counted.items():
        found[kind, size] += count
    return found


def test_the_plan_of_more_ranks_than_heads_for_keys_and_values_is_what_they_send(world):
    model = tiny("Llama")
    step = Step(batch_size=TOKENS.shape[0], sequence_length=TOKENS.shape[1])
    [stage] = planned_step(model, resolve_plan(model), MeshLayout(tp=4), step)
    planned = Counter()
    for one, count in stage.collectives.items():
        planned[one.kind, one.num_bytes] += count
    assert world(4).run(collectives_of_layers) == [planned] * 4


def train_both(folder):
    """Train a model that transformers has distributed over both axes of two by two ranks."""
    accelerator = Accelerator(
        cpu=True,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
        parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2),
    )
    model = distributed(folder, fsdp_size=2, tp_size=2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for _ in range(3):
        rows = TOKENS[2 * (accelerator.process_index // 2) :][:2]
        loss = model(rows, labels=rows).loss
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5).item()
        found.append((accelerator.reduce(loss.detach(), "mean").item(), norm))
        optimizer.step()
        optimizer.zero_grad()
    return found, accelerator.get_state_dict(model)


def test_a_model_that_transformers_sharded_over_two_axes_trains_like_one_process(world, pretrained):
    model, folder = pretrained
    expected, after = trained(model, num_steps=3)
    (found, state), *others = world(4).run(train_both, folder)
    assert all(one == found for one, _ in others)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-6)
