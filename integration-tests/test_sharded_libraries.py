"""Models of transformers, adapters of peft and weights of bitsandbytes, sharded, train as one process trains them."""

from __future__ import annotations

import copy

import pytest
import torch

from accel import Accelerator, FullyShardedDataParallelPlugin

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]

NUM_STEPS = 3
NUM_TOKENS = 97
LIMIT_S = 180.0
"""The ranks import the libraries in the first test."""


def llama(*, tied):
    """A Llama whose four query heads share two heads of keys and values."""
    config = transformers.LlamaConfig(
        vocab_size=NUM_TOKENS, hidden_size=64, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2(*, tied):
    config = transformers.GPT2Config(
        vocab_size=NUM_TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=32, tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def mixtral(*, tied):
    config = transformers.MixtralConfig(
        vocab_size=NUM_TOKENS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config)


def lora(model):
    """Return ``model`` frozen, with adapters that change what it computes from the start."""
    import peft

    options = {"lora_dropout": 0.0, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    return peft.get_peft_model(
        model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **options)
    )


def quantised(model, *, storage, compute):
    """Return ``model`` with the weights of its layers in four bits, kept in tensors of the type ``storage``."""
    import bitsandbytes

    for name, layer in list(model.model.layers.named_modules()):
        if type(layer) is torch.nn.Linear:
            options = {"quant_type": "nf4", "quant_storage": storage}
            small = bitsandbytes.nn.Linear4bit(
                layer.in_features, layer.out_features, bias=False, compute_dtype=compute, **options
            )
            weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, requires_grad=False, module=small, **options
            )
            small.weight = weight._quantize("cpu")
            model.model.layers.set_submodule(name, small)
    return model


def sharded(precision="no"):
    return Accelerator(
        cpu=True, mixed_precision=precision, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)
    )


def micro_batches():
    return torch.randint(0, NUM_TOKENS, (2, 3, 11), generator=torch.Generator().manual_seed(1))


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train_in_ranks(accelerator, model, *, make_optimizer):
    tokens = micro_batches()[accelerator.process_index]
    model, optimizer = accelerator.prepare(model, make_optimizer(trained(model)))
    for _ in range(NUM_STEPS):
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        accelerator.clip_grad_norm_(trained(model), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


def train_alone(model, *, make_optimizer, precision="no"):
    optimizer = make_optimizer(trained(model))
    for _ in range(NUM_STEPS):
        for tokens in micro_batches():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = model(input_ids=tokens, labels=tokens).loss / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained(model), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def adamw(parameters):
    """Return AdamW that makes little of gradients which are rounding errors, as those of biases of keys."""
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-4)


def written(model):
    with torch.no_grad():
        return model.generate(micro_batches()[0][:1, :4], max_new_tokens=6, do_sample=False)


def save_pretrained(accelerator, model, state, folder):
    accelerator.unwrap_model(model).save_pretrained(
        folder,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=dict(state),  # transformers takes names of tied weights out of it
    )


def same_tensors(ours, theirs):
    return list(ours) == list(theirs) and all(
        torch.equal(ours[name], value) for name, value in theirs.items()
    )


def same_bytes(ours, theirs):
    """Whether two tensors have the same bytes: four-bit numbers, looked at as bf16, may be NaN."""
    return ours.dtype is theirs.dtype and torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def largest_difference(ours, theirs):
    assert list(ours) == list(theirs)
    return max((ours[name].float() - value.float()).abs().max().item() for name, value in theirs.items())


def train_whole_model(build, tied, folder):
    torch.manual_seed(0)
    model = build(tied=tied)
    alone = copy.deepcopy(model)
    accelerator = sharded()
    model = train_in_ranks(accelerator, model, make_optimizer=adamw)
    train_alone(alone, make_optimizer=adamw)
    state, text = accelerator.get_state_dict(model), written(model)
    save_pretrained(accelerator, model, state, folder)
    if not accelerator.is_main_process:
        return None
    loaded = type(alone).from_pretrained(folder)
    return {
        "difference": largest_difference(state, alone.state_dict()),
        "writes the same": torch.equal(text, written(alone)),
        "loads the same": same_tensors(loaded.state_dict(), state),
        "is tied": loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight,
    }


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("build", [llama, gpt2, mixtral])
def test_a_full_model_trains_writes_and_loads_as_in_one_process(world, tmp_path, build, tied):
    """Gradients of two ranks are summed in another order than those of micro-batches, and then clipped."""
    result, _ = world(2).run(train_whole_model, build, tied, tmp_path, timeout_s=LIMIT_S)
    assert result.pop("difference") <= 1e-6
    assert result == {"writes the same": True, "loads the same": True, "is tied": tied}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def train_by_hidden_states(precision):
    torch.manual_seed(0)
    model = llama(tied=True)
    alone = copy.deepcopy(model)
    accelerator = sharded(precision)
    tokens = micro_batches()
    model, optimizer = accelerator.prepare(model, sgd(model.parameters()))
    with torch.inference_mode():
        model.model(tokens[0])
    optimizer_alone = sgd(alone.parameters())
    for _ in range(NUM_STEPS):
        accelerator.backward(model.model(tokens[accelerator.process_index]).last_hidden_state.square().mean())
        for rows in tokens:
            (alone.model(rows).last_hidden_state.square().mean() / 2).backward()
        for each in (optimizer, optimizer_alone):
            each.step()
            each.zero_grad()
    state = accelerator.get_state_dict(model)
    return largest_difference(state, alone.state_dict()) if accelerator.is_main_process else None


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-6), ("bf16", 1e-3)])
def test_the_decoder_of_a_sharded_model_runs_first_and_is_trained_by_itself(world, precision, tolerance):
    """In bf16, outputs have three digits, and so have gradients."""
    difference, _ = world(2).run(train_by_hidden_states, precision, timeout_s=LIMIT_S)
    assert difference <= tolerance


def train_adapters(storage, precision, folder):
    def build():
        torch.manual_seed(0)
        base = llama(tied=False)
        compute = torch.bfloat16 if precision == "bf16" else torch.float32
        if storage is None:
            return lora(base)
        return lora(quantised(base.to(compute), storage=storage, compute=compute))

    model, alone = build(), build()
    before = {name: value.detach().clone() for name, value in alone.named_parameters()}
    accelerator = sharded(precision)
    model = train_in_ranks(accelerator, model, make_optimizer=sgd)
    train_alone(alone, make_optimizer=sgd, precision=precision)
    state = accelerator.get_state_dict(model)
    save_pretrained(accelerator, model, state, folder)
    if not accelerator.is_main_process:
        return None
    after = dict(alone.named_parameters())
    names = [name for name, value in after.items() if value.requires_grad]
    import peft

    loaded = peft.get_peft_model_state_dict(peft.PeftModel.from_pretrained(llama(tied=False), folder))
    ours = peft.get_peft_model_state_dict(accelerator.unwrap_model(model), state_dict=state)
    return {
        "difference": largest_difference({n: state[n] for n in names}, {n: after[n].detach() for n in names}),
        "moved": largest_difference({n: before[n] for n in names}, {n: after[n].detach() for n in names}),
        "frozen ones stayed": all(same_bytes(before[n], state[n]) for n in before if n not in names),
        "loads the same": same_tensors(loaded, ours),
    }


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("storage", [None, torch.uint8, torch.bfloat16], ids=["plain", "uint8", "bf16"])
def test_adapters_next_to_frozen_weights_train_as_in_one_process(world, tmp_path, storage, precision):
    """In bf16 the products are rounded to eight bits: a sum in another order moves a step by as much."""
    result, _ = world(2).run(train_adapters, storage, precision, tmp_path, timeout_s=LIMIT_S)
    assert result.pop("moved") > 1e-3
    assert result.pop("difference") <= (1e-6 if precision == "no" else 1e-4)
    assert result == {"frozen ones stayed": True, "loads the same": True}
