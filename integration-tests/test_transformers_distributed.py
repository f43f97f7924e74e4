"""Models that transformers has distributed over the ranks are trained as they are, or refused with the reason."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.planning.collectives import counted_collectives
from accel.planning.step import Step, planned_step
from accel_backends import resolve_plan
from accel_state import TorchContextParallelConfig
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


def loaded_beside(accelerator, folder, mesh=None):
    """Load a model, of which transformers shards the layers by its `tp_plan` over two of four ranks."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    plan = model._expand_parallel_plan(model.tp_plan)
    return apply_tensor_parallelism(model, mesh or accelerator.torch_device_mesh["tp"], plan)


def accelerator_beside(sizes, **arguments):
    handler = TorchContextParallelConfig(cuts_batches=True) if "cp_size" in sizes else None
    parallelism = ParallelismConfig(tp_size=2, cp_handler=handler, sp_backend="torch", **sizes)
    return Accelerator(cpu=True, parallelism_config=parallelism, **arguments)


def train_beside(folder, sizes, *, resume_from=None, checkpoint_format=None, **arguments):
    """Train such a model, save after the second of three steps, or do the third from there."""
    accelerator = accelerator_beside(sizes, gradient_accumulation_steps=2, **arguments)
    model = loaded_beside(accelerator, folder)
    rows = [{"input_ids": row, "labels": row} for row in TOKENS] * 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(rows, batch_size=2 // accelerator_ranks(accelerator))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resume_from is not None:
        accelerator.load_state(str(resume_from), restore_loaders=True)
    found = []
    for batch in loader:
        with accelerator.accumulate(model):
            labels = batch.pop("labels", None)
            shifted = batch.pop("shift_labels", None)
            logits = model(**batch, use_cache=False).logits
            loss = model.loss_function(
                logits=logits, labels=labels, shift_labels=shifted, vocab_size=model.config.vocab_size
            )
            num = torch.tensor(7 * len(logits)) if shifted is None else (shifted != -100).sum()
            accelerator.backward(loss, num_items=num)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5).item()
            optimizer.step()
            optimizer.zero_grad()
        summed, total = accelerator.reduce(torch.stack([loss.detach() * num, num]))
        found.append((summed / total).item())
        if accelerator.sync_gradients:
            found.append(norm)
            if len(found) == 6 and checkpoint_format:
                accelerator.save_state(str(folder / "state"), checkpoint_format=checkpoint_format)
    return found, accelerator.get_state_dict(model)


def accelerator_ranks(accelerator):
    """Return how many ranks read batches of their own."""
    return accelerator.parallelism_config.dp_shard_size


def trained_on_halves(model):
    """Train as plain torch does on the rows of `train_beside`; return its losses and norms, and the state."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(3):
        for rows in TOKENS.chunk(2):
            loss = model(rows, labels=rows).loss
            (loss / 2).backward()
            found.append(loss.item())
        found.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
    return found, dict(model.state_dict())


@pytest.mark.parametrize(
    ("kind", "sizes", "checkpoint_format", "arguments"),
    [
        ("Llama", {"dp_shard_size": 2}, "sharded", {}),
        ("Llama", {"dp_shard_size": 2}, "full", {"dynamo_backend": "aot_eager"}),
        ("Llama", {"cp_size": 2}, "sharded", {}),
        (
            "Qwen3",
            {"dp_shard_size": 2},
            "sharded",
            {},
        ),  # transformers sums the gradients of its norms in hooks
    ],
    ids=["fsdp", "fsdp and compile", "cp", "fsdp and norms of heads"],
)
def test_layers_that_transformers_has_sharded_train_beside_the_axes_of_the_run(
    world, tmp_path, kind, sizes, checkpoint_format, arguments
):
    model, folder = tiny(kind), tmp_path
    model.save_pretrained(folder)
    expected, after = trained_on_halves(model)
    train = {"checkpoint_format": checkpoint_format, **arguments}
    (found, state), *others = world(4).run(train_beside, folder, sizes, **train)
    assert all(one == found for one, _ in others)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-6)
    resumed = world(4).run(train_beside, folder, sizes, resume_from=folder / "state", **arguments)
    assert resumed[0][0] == found[6:]
    torch.testing.assert_close(resumed[0][1], state, rtol=0, atol=0)


def test_master_weights_of_sharded_layers_in_16_bits_are_fp32(world, pretrained):
    model, folder = pretrained
    model.bfloat16().save_pretrained(folder)
    for dtypes, _ in world(4).run(dtypes_beside, folder):
        assert dtypes == {torch.float32}


def dtypes_beside(folder):
    accelerator = accelerator_beside({"dp_shard_size": 2}, mixed_precision="bf16")
    model = accelerator.prepare(loaded_beside(accelerator, folder))
    loss = model(TOKENS, labels=TOKENS).loss
    accelerator.backward(loss)
    return {one.dtype for one in model.parameters()} | {one.grad.dtype for one in model.parameters()}, loss


def refusal_beside(folder, sizes, names):
    accelerator = accelerator_beside(sizes)
    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)["tp"] if names else None
    with pytest.raises(ConfigError) as caught:
        accelerator.prepare(loaded_beside(accelerator, folder, mesh))
    return str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "names", "part"),
    [
        ({"pp_size": 2}, None, "and `pp_size` 2 makes stages of models that are not sharded yet"),
        ({"dp_shard_size": 2, "ep_size": 2}, None, "and `ep_size` would shard its experts over others"),
        ({"dp_shard_size": 2}, ("tp", "other"), "Shard it over `accelerator.torch_device_mesh['tp']`"),
    ],
)
def test_layers_that_transformers_has_sharded_are_refused_beside_what_needs_all_of_them(
    world, pretrained, sizes, names, part
):
    for message in world(4).run(refusal_beside, pretrained[1], sizes, names):
        assert part in message


def mixture():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=40, num_local_experts=4, pad_token_id=0,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


def train_experts(folder, sizes):
    from transformers.distributed import DistributedConfig

    accelerator = Accelerator(
        cpu=True,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
        parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=sizes.get("tp_size", 1)),
    )
    model = transformers.MixtralForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(**sizes)
    )
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for _ in range(3):
        rows = TOKENS[2 * (accelerator.process_index // sizes.get("tp_size", 1)) :][:2]
        loss = model(rows, labels=rows).loss
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5).item()
        found.append((accelerator.reduce(loss.detach(), "mean").item(), norm))
        optimizer.step()
        optimizer.zero_grad()
    return found, accelerator.get_state_dict(model)


@pytest.mark.parametrize(
    "sizes", [{"fsdp_size": 2, "ep_size": 2}, {"fsdp_size": 2, "tp_size": 2, "ep_size": 2}], ids=str
)
def test_experts_that_transformers_has_sharded_train_as_one_process(world, tmp_path, sizes):
    model = mixture()
    model.save_pretrained(tmp_path)
    expected, after = trained(model, num_steps=3)
    num_ranks = sizes["fsdp_size"] * sizes.get("tp_size", 1)
    (found, state), *others = world(num_ranks).run(train_experts, tmp_path, sizes)
    assert all(one == found for one, _ in others)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(state, after, rtol=0, atol=1e-5)
