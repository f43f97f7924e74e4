"""Families of transformers train in stages as in one process, from the meta device and from a checkpoint, too."""

from functools import partial

import pytest
import torch

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig, init_empty_weights
from accel_backends.pipeline.chunks import in_chunks
from accel_state import PipelineParallelConfig
from accel_state.errors import ConfigError, DistributedOperationException
from accel_state.runtime import reset_runtime

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.usefixtures("fresh_state"), pytest.mark.filterwarnings("ignore")]
TOKENS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NUM_ROWS, NUM_PARTS, RESUMED_AFTER = 6, 4, 2  # micro-batches of 2, 2, 1 and 1 rows


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 5, "n_head": 2, "n_positions": 16}
    rates = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, **TOKENS))


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4, "dropout_rate": 0.0}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, **{**TOKENS, "bos_token_id": None})
    return transformers.T5ForConditionalGeneration(config)


def decoder(kind, **settings):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{kind}Config")(num_hidden_layers=5, **sizes, **settings, **TOKENS)
    return getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)


FAMILIES = {
    "gpt2": gpt2,  # tied
    "llama": partial(decoder, "Llama"),
    "qwen3": partial(decoder, "Qwen3", head_dim=8),
    "gemma3": partial(decoder, "Gemma3Text", head_dim=8, sliding_window=4),  # tied, two rotary tables
    "mixtral": partial(decoder, "Mixtral", num_local_experts=4),
    "t5": t5,  # two stacks, and a position bias that the first block of each computes
}


def make(kind):
    torch.manual_seed(0)
    return FAMILIES[kind]().train()


def batches():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 40, (NUM_ROWS, 7), generator=generator) for _ in range(2 * RESUMED_AFTER)]


def loss_of(model, tokens):
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def gradients_of(model):
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_alone(kind, folder):
    """Save the weights, and return the loss and the gradients of each batch."""
    model = make(kind)
    Accelerator(cpu=True).save_model(model, folder)
    optimizer, steps = make_optimizer(model), []
    for tokens in batches():
        losses = []
        for part in in_chunks(tokens, NUM_ROWS, NUM_PARTS):
            losses.append(loss_of(model, part) * len(part) / NUM_ROWS)
            losses[-1].backward()
        steps.append((sum(losses).item(), gradients_of(model)))
        optimizer.step()
        optimizer.zero_grad()
    return steps


def train_in_stages(kind, num_ranks, schedule, folder, checkpoint):
    """Return the same of a model on the meta device: with weights from files, then from the checkpoint of that run."""
    steps = []
    for has_files in (True, False):
        reset_runtime(keep_process_group=True)
        handler = PipelineParallelConfig(schedule, NUM_PARTS)
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, load_weights_from=folder if has_files else None
        )
        config = ParallelismConfig(pp_size=num_ranks, pp_handler=handler)
        accelerator = Accelerator(cpu=True, parallelism_config=config, fsdp_plugin=plugin)
        with init_empty_weights(include_buffers=False):
            model = make(kind)
        model, optimizer = accelerator.prepare(model, make_optimizer(model))
        if not has_files:
            accelerator.load_state(checkpoint)
        for tokens in batches()[:RESUMED_AFTER] if has_files else batches()[RESUMED_AFTER:]:
            loss = accelerator.forward_backward(model, tokens, loss_of).item()
            steps.append((loss, gradients_of(model)))
            optimizer.step()
            optimizer.zero_grad()
        if has_files:
            accelerator.save_state(checkpoint)
    return steps


def check(world, tmp_path, kind, num_ranks, schedule):
    folder, checkpoint = str(tmp_path / "weights"), str(tmp_path / "checkpoint")
    (expected,) = world(1).run(train_alone, kind, folder)
    each = world(num_ranks).run(train_in_stages, kind, num_ranks, schedule, folder, checkpoint, timeout_s=120)
    for step, (loss, gradients) in enumerate(expected):
        assert {name for own in each for name in own[step][1]} == set(gradients)
        for own in each:
            own_loss, own_gradients = own[step]
            assert own_loss == pytest.approx(loss, rel=1e-5)
            for name, gradient in own_gradients.items():
                torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=2e-6, msg=(step, name))


def test_a_tied_model_trains_and_resumes_in_stages_from_the_meta_device(world, tmp_path):
    check(world, tmp_path, "gpt2", 2, "1f1b")


@pytest.mark.engine("long")
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(
    ("num_ranks", "schedule"), [(2, "interleaved_1f1b"), (3, "zero_bubble"), (4, "1f1b")]
)
def test_a_family_trains_and_resumes_in_stages_from_the_meta_device(
    world, tmp_path, kind, num_ranks, schedule
):
    check(world, tmp_path, kind, num_ranks, schedule)


def refuse_router_loss():
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(pp_size=2))
    model = make("mixtral")
    model.config.output_router_logits = True
    model = accelerator.prepare(model)
    with pytest.raises((ConfigError, DistributedOperationException), match="`output_router_logits` collects"):
        accelerator.forward_backward(model, batches()[0], loss_of)
    return True


def test_a_loss_over_the_routers_of_all_layers_is_refused_by_name(world):
    assert all(world(2).run(refuse_router_loss))
