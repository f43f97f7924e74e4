"""Models of transformers over two processes: the outputs and gradients of the full model."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from accel import Accelerator, ParallelismConfig, prepare_pippy
from accel_backends.sequence_parallel.batches import whole_batch
from accel_state import PipelineParallelConfig, TorchContextParallelConfig
from accel_state.runtime import reset_runtime

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.usefixtures("fresh_state"),
    pytest.mark.filterwarnings("ignore"),
]
TOKENS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_layer=3, n_head=2, n_positions=64, **TOKENS)
    return transformers.GPT2ForSequenceClassification(config)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=True, **TOKENS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5(num_layers=2):
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=num_layers, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0,
        **{**TOKENS, "bos_token_id": None},
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def deep_t5():
    return t5(4)


def bart():
    config = transformers.BartConfig(
        d_model=32, encoder_layers=3, decoder_layers=4, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, decoder_start_token_id=2, **TOKENS,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def opt():
    config = transformers.OPTConfig(
        hidden_size=32, ffn_dim=64, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=32,
        word_embed_proj_dim=32, **TOKENS,
    )  # fmt: skip
    return transformers.OPTForCausalLM(config)


def decoder(kind, **settings):
    """Return a decoder with several blocks in each of three stages."""
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, intermediate_size=64, num_hidden_layers=7, num_attention_heads=4, **settings, **TOKENS
    )  # fmt: skip
    return getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
DEEP = {
    "llama": partial(decoder, "Llama", num_key_value_heads=2),
    "qwen3": partial(decoder, "Qwen3", **GROUPED),
    # Two rotary tables: of the layers that see a window, and of the others.
    "gemma3": partial(decoder, "Gemma3Text", **GROUPED, sliding_window=4),
    "modernbert": partial(decoder, "ModernBertDecoder", local_attention=8),
    "t5": deep_t5,
    "bart": bart,
    "opt": opt,
}


def make(build):
    torch.manual_seed(0)
    return build().eval()


def batch_of(build, *, rows=5, length=7):
    tokens = torch.arange(rows * length).reshape(rows, length) % 37 + 3
    mask = torch.ones_like(tokens)
    mask[1, length - 2 :] = 0
    batch = {"input_ids": tokens, "attention_mask": mask}
    return {**batch, "decoder_input_ids": tokens} if build in (t5, deep_t5, bart) else batch


KINDS = {"gpt2": gpt2, "llama": llama, "t5": t5}


def largest_differences(kinds):
    """Compare with the full models, on a batch that two chunks do not divide and on a shorter one."""
    differences = {}
    for kind, build in kinds.items():
        with torch.no_grad():
            model = make(build)
            batches = [batch_of(build), batch_of(build, rows=3, length=4)]
            expected = [model(**batch) for batch in batches]
            model = prepare_pippy(model, example_kwargs=batch_of(build, rows=2), gather_output=True)
            for batch, whole in zip(batches, expected, strict=True):
                output = model(**batch)
                assert type(output) is type(whole)
                for name in (name for name in whole if isinstance(whole[name], torch.Tensor)):
                    difference = (output[name] - whole[name]).abs().max().item()
                    differences[kind, name, len(batch["input_ids"])] = difference
    return differences


@pytest.mark.parametrize(("num_processes", "kinds"), [(2, KINDS), (3, DEEP)])
def test_models_over_processes_compute_what_they_do_in_one(world, num_processes, kinds):
    for differences in world(num_processes).run(largest_differences, kinds, timeout_s=180):
        assert {kind for kind, _, _ in differences} == {*kinds}
        assert max(differences.values()) < 1e-6, differences


def loss_of(model, batch):
    return model(**batch, labels=batch["input_ids"]).loss


def gradients(build, num_ranks, schedule="1f1b"):
    """Return the names of this rank's gradients, those of all, and how far the rank's are from the full model's."""
    reset_runtime(keep_process_group=True)
    batch = batch_of(build, rows=4)
    del batch["attention_mask"]
    whole = make(build)
    for row in range(4):
        one = {name: tokens[row : row + 1] for name, tokens in batch.items()}
        (loss_of(whole, one) / 4).backward()
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    config = ParallelismConfig(pp_size=num_ranks, pp_handler=PipelineParallelConfig(schedule))
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    model = accelerator.prepare(make(build))
    accelerator.forward_backward(model, batch, loss_of)
    own = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return set(own), set(expected), max((own[name] - expected[name]).abs().max().item() for name in own)


def test_a_tied_model_trains_in_two_stages(world):
    (first, expected, first_difference), (second, _, second_difference) = world(2).run(gradients, llama, 2)
    assert first | second == expected
    assert first & second == {"model.embed_tokens.weight"}
    assert max(first_difference, second_difference) < 1e-6


def all_gradients(kinds, num_ranks, schedule):
    return {kind: gradients(DEEP[kind], num_ranks, schedule) for kind in kinds}


@pytest.mark.parametrize(
    ("kinds", "num_ranks", "schedule"), [((*DEEP,), 3, "1f1b"), (("gemma3", "t5"), 2, "interleaved_1f1b")]
)
def test_stages_of_several_blocks_have_the_gradients_of_the_full_model(world, kinds, num_ranks, schedule):
    each = world(num_ranks).run(all_gradients, kinds, num_ranks, schedule)
    for kind in kinds:
        names, (expected, *_), differences = zip(*(own[kind] for own in each), strict=True)
        assert set().union(*names) == expected, kind
        assert max(differences) < 1e-6, kind


def make_mixture(kind, settings, implementation):
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **settings, **TOKENS
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.set_experts_implementation(implementation)
    return model


def mixtral():
    return make_mixture("Mixtral", {"num_local_experts": 4, "intermediate_size": 24}, "eager")


def qwen3_moe():
    sizes = {"num_experts": 4, "moe_intermediate_size": 8, "head_dim": 8, "num_experts_per_tok": 2}
    return make_mixture("Qwen3Moe", sizes, "grouped_mm")


def labelled_rows():
    """Return four sequences with padding on either side, and other numbers of labels in each half."""
    ids = torch.randint(3, 40, (4, 12), generator=torch.Generator().manual_seed(1))
    mask, labels = torch.ones_like(ids), ids.clone()
    mask[0, :3] = mask[1, -4:] = mask[3, -1:] = 0
    labels[0, :4] = labels[1, -4:] = labels[2, :9] = labels[3, -1:] = -100
    rows = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return [{name: value[row] for name, value in rows.items()} for row in range(4)]


def num_labels(batch):
    return (batch["shift_labels"] != -100).sum()


def mean_of_labels(model, batch):
    inputs = {name: value for name, value in batch.items() if name != "shift_labels"}
    logits = model(**inputs, use_cache=False).logits
    summed = cross_entropy(logits.flatten(0, 1), batch["shift_labels"].flatten(), reduction="sum")
    return summed / num_labels(batch).clamp(min=1)


def train_labelled(build, sizes):
    """Return the losses with their numbers of labels, the norms and the state of two steps."""
    reset_runtime(keep_process_group=True)
    config = ParallelismConfig(
        **sizes,
        sp_backend="torch",
        pp_handler=PipelineParallelConfig("1f1b", 2) if sizes else None,
        cp_handler=TorchContextParallelConfig(cuts_batches=True) if "cp_size" in sizes else None,
    )
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rows = 4 // config.layout.num_data_ranks
    loader = DataLoader(labelled_rows(), batch_size=rows)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, norms = [], []
    for _ in range(2):
        for batch in loader:
            whole = whole_batch(batch) if "shift_labels" not in batch else batch
            loss = accelerator.forward_backward(model, whole, mean_of_labels, num_labels)
            losses.append((loss.item(), num_labels(whole).item()))
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return losses, norms, accelerator.get_state_dict(model)


PRODUCTS = [
    (llama, {"pp_size": 2, "cp_size": 2}),
    (llama, {"pp_size": 2, "sp_size": 2}),
    (mixtral, {"pp_size": 2, "ep_size": 2}),
    (qwen3_moe, {"pp_size": 2, "ep_size": 2}),
]


def train_products():
    return [train_labelled(build, sizes) for build, sizes in PRODUCTS]


def test_stages_with_cp_sp_or_ep_ranks_train_as_in_one_process(world):
    each = world(4).run(train_products)
    for (build, _), found in zip(PRODUCTS, zip(*each, strict=True), strict=True):
        [(losses, norms, state)] = world(1).run(train_labelled, build, {})
        for step, (loss, num) in enumerate(losses):
            parts = [own[0][step] for own in found]
            assert parts[:2] == parts[2:]
            assert parts[0][1] != parts[1][1]
            assert sum(count for _, count in parts[:2]) == num
            assert sum(one * count for one, count in parts[:2]) / num == pytest.approx(loss, rel=1e-6)
        for own in found:
            assert own[1] == found[0][1] == pytest.approx(norms, rel=1e-5)
        # Each step is the rate times the gradient.
        torch.testing.assert_close(found[0][2], dict(state), rtol=1e-5, atol=1e-6)
