"""Models of transformers over two processes: the outputs and gradients of the whole model."""

from __future__ import annotations

import pytest
import torch

from accel import Accelerator, ParallelismConfig, prepare_pippy

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.usefixtures("fresh_state"), pytest.mark.filterwarnings("ignore")]
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


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
        **{**TOKENS, "bos_token_id": None},
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def make(build):
    torch.manual_seed(0)
    return build().eval()


def batch_of(build, *, rows=5, length=7):
    tokens = torch.arange(rows * length).reshape(rows, length) % 37 + 3
    mask = torch.ones_like(tokens)
    mask[1, length - 2 :] = 0
    batch = {"input_ids": tokens, "attention_mask": mask}
    return {**batch, "decoder_input_ids": tokens} if build is t5 else batch


KINDS = {"gpt2": gpt2, "llama": llama, "t5": t5}


def largest_differences():
    """Compare with the whole models, on a batch that two chunks do not divide and on a shorter one."""
    differences = {}
    for kind, build in KINDS.items():
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


def test_models_over_two_processes_compute_what_they_do_in_one(world):
    for differences in world(2).run(largest_differences):
        assert {kind for kind, _, _ in differences} == {*KINDS}
        assert max(differences.values()) < 1e-6, differences


def loss_of(model, batch):
    return model(**batch, labels=batch["input_ids"]).loss


def gradients():
    batch = batch_of(llama, rows=4)
    del batch["attention_mask"]
    whole = make(llama)
    for row in range(4):
        (loss_of(whole, {"input_ids": batch["input_ids"][row : row + 1]}) / 4).backward()
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(pp_size=2))
    model = accelerator.prepare(make(llama))
    accelerator.forward_backward(model, batch, loss_of)
    own = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return set(own), set(expected), max((own[name] - expected[name]).abs().max().item() for name in own)


def test_a_tied_model_trains_in_two_stages(world):
    (first, expected, first_difference), (second, _, second_difference) = world(2).run(gradients)
    assert first | second == expected
    assert first & second == {"model.embed_tokens.weight"}
    assert max(first_difference, second_difference) < 1e-6
