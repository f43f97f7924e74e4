"""Activation checkpointing of models whose layers write to a cache of keys and values, and of compiled units."""

from functools import partial

import pytest
import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel.utils import TorchDynamoPlugin
from accel_state.errors import ConfigError
from accel_state.runtime import reset_runtime
from tools.harness.models import make_batches, make_model

pytestmark = pytest.mark.preload(
    "accel.accelerator", "transformers.modeling_utils", "torch._inductor.compile_fx"
)
SIZES = {
    "vocab_size": 19,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(kind):
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(hidden_size=8, intermediate_size=12, num_key_value_heads=2, **SIZES)
        return transformers.LlamaForCausalLM(config).train()
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(hidden_size=8, n_positions=16, **SIZES)
        ).train()
    config = transformers.T5Config(d_model=8, d_kv=4, d_ff=12, decoder_start_token_id=0, **SIZES)
    return transformers.T5ForConditionalGeneration(config).train()


def prepared(kind, *, is_checkpointed=True, is_selective=False, dynamo="no"):
    reset_runtime(keep_process_group=True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        activation_checkpointing=is_checkpointed,
        selective_checkpointing=is_selective,
    )
    accelerator = Accelerator(cpu=True, dynamo_backend=dynamo, fsdp_plugin=plugin)
    return accelerator, accelerator.prepare(make(kind))


def padded_batch(rank):
    ids = torch.randint(3, 19, (2, 6), generator=torch.Generator().manual_seed(rank))
    mask = torch.ones_like(ids)
    mask[0, : 2 + rank] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def loss_and_gradients(kind, **options):
    accelerator, model = prepared(kind, **options)
    torch.manual_seed(accelerator.process_index)
    output = model(**padded_batch(accelerator.process_index))
    accelerator.backward(output.loss)
    num_cached = output.past_key_values.get_seq_length()
    return output.loss.item(), num_cached, [one.grad.full_tensor() for one in model.parameters()]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_padded_batches_have_the_same_gradients_and_no_cache_is_kept(world, kind):
    plain = world(2).run(loss_and_gradients, kind, is_checkpointed=False)
    checkpointed = world(2).run(loss_and_gradients, kind)
    for (loss, num_cached, expected), (same, num_kept, gradients) in zip(plain, checkpointed, strict=True):
        assert (same, num_cached, num_kept) == (loss, 6, 0)
        # T5 adds up the gradients of its shared position biases in another order.
        torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{"is_selective": True}, {"dynamo": "aot_eager"}], ids=str)
def test_selective_and_compiled_layers_keep_no_cache_either(world, options):
    plain = world(2).run(loss_and_gradients, "llama", is_checkpointed=False)[0]
    loss, num_kept, gradients = world(2).run(loss_and_gradients, "llama", **options)[0]
    assert num_kept == 0
    torch.testing.assert_close((loss, gradients), (plain[0], plain[2]), rtol=0, atol=1e-6)


def cached_tokens_of_an_evaluation():
    _, model = prepared("llama")
    model.eval()
    batch = padded_batch(0)
    first = model(input_ids=batch["input_ids"][:, :5])
    second = model(input_ids=batch["input_ids"][:, 5:], past_key_values=first.past_key_values)
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"])
    return second.past_key_values.get_seq_length(), second.logits[:, -1].detach(), expected.logits[:, -1]


def test_an_evaluation_with_gradients_decodes_from_its_cache(world):
    for num_cached, logits, expected in world(2).run(cached_tokens_of_an_evaluation):
        assert num_cached == 6
        torch.testing.assert_close(logits, expected)


def train_after_a_prefix():
    _, model = prepared("llama")
    cache = transformers.DynamicCache(config=model.config)
    for layer in range(2):
        cache.update(torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 4), layer)
    with pytest.raises(
        ConfigError, match="`past_key_values` with content.*turn activation checkpointing off"
    ):
        model(input_ids=padded_batch(0)["input_ids"], past_key_values=cache)


def test_training_after_a_prefix_is_an_error(world):
    world(2).run(train_after_a_prefix)


def graphs_and_breaks(step):
    """Return how many graphs a step compiles, and where they break, which is an error as well."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step()
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], list(counters["graph_break"])


def compiled_by_torch(model, batch):
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        run_twice = partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = torch.compile(run_twice, backend="aot_eager", fullgraph=True)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return graphs_and_breaks(lambda: model(batch).float().sum().backward())


def compiled_by_plugin(model, batch, **options):
    reset_runtime(keep_process_group=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True, **options)
    dynamo = TorchDynamoPlugin(backend="aot_eager", fullgraph=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", fsdp_plugin=plugin, dynamo_plugin=dynamo)
    model = accelerator.prepare(model)

    def step():
        outputs = model(**batch).loss if isinstance(batch, dict) else model(batch)
        accelerator.backward(outputs.float().sum())

    return graphs_and_breaks(step)


def compare_graphs(options):
    batch = make_batches(1)[0]
    plain = compiled_by_torch(make_model("odd"), batch)
    return plain, compiled_by_plugin(make_model("odd"), batch, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"selective_checkpointing": True}, {"activation_checkpointing_offload": True}],
    ids=str,
)
def test_compiled_units_have_the_graphs_that_they_have_with_torch_only(world, options):
    for (num_graphs, _), ours in world(2).run(compare_graphs, options):
        assert ours == (num_graphs, [])


def compile_layers_with_a_cache():
    return compiled_by_plugin(make("llama"), padded_batch(0))


def test_compiled_layers_that_get_a_cache_have_no_graph_break(world):
    assert [breaks for _, breaks in world(2).run(compile_layers_with_a_cache)] == [[], []]
