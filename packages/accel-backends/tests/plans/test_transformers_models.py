from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import resolve_plan

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def llama(**settings):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **settings))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=8, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(config)


def mixtral():
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config)


def bert(kind="BertForMaskedLM"):
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES))


def layers(prefix):
    return (f"{prefix}.0", f"{prefix}.1")


@pytest.mark.parametrize(
    ("make", "units", "tail"),
    [
        (llama, ("model.embed_tokens", *layers("model.layers")), ("model.norm", "lm_head")),
        (gpt2, ("transformer.wte", *layers("transformer.h")), ("transformer.ln_f", "lm_head")),
        (bert, ("bert.embeddings", *layers("bert.encoder.layer")), ("cls.predictions.decoder",)),
        (
            t5,
            ("shared", *layers("encoder.block"), *layers("decoder.block")),
            ("decoder.final_layer_norm", "lm_head"),
        ),
        (mixtral, ("model.embed_tokens", *layers("model.layers")), ("model.norm", "lm_head")),
    ],
)
def test_units_are_the_input_embedding_and_the_blocks_and_the_tail_is_norm_and_head(make, units, tail):
    with torch.device("meta"):
        plan = resolve_plan(make())
    assert (plan.units, plan.tail) == (units, tail)


def test_the_head_of_a_classifier_is_in_the_tail():
    plan = resolve_plan(bert("BertForSequenceClassification"))
    assert plan.tail == ("classifier",)


def test_tensor_plan_and_attention_are_those_of_the_model():
    plan = resolve_plan(llama())
    assert plan.tensor["model.layers.1.self_attn.o_proj"] == "rowwise"
    assert plan.tensor["lm_head"] == "colwise_gather_output"
    assert plan.attention == ("model.layers.0.self_attn", "model.layers.1.self_attn")


def test_experts_are_those_of_the_model():
    assert resolve_plan(mixtral()).experts == {
        f"model.layers.{layer}.mlp.experts{name}": style
        for layer in range(2)
        for name, style in (
            ("", "ep_dispatch_experts"),
            (".gate_up_proj", "grouped_gemm"),
            (".down_proj", "grouped_gemm"),
        )
    }


def test_without_classes_of_blocks_the_plan_of_fsdp_counts():
    model = llama()
    model._no_split_modules = set()
    plan = resolve_plan(model)
    assert plan.units == ("model.embed_tokens", *layers("model.layers"))
    assert plan.tail == ("model.norm", "lm_head")


def test_a_rule_of_a_plan_of_transformers_need_not_fit_every_model():
    model = llama()
    model._no_split_modules = set()
    model._fsdp_plan["model.absent.*"] = "free_full_weight"
    model._tp_plan["model.absent.*"] = "colwise"
    plan = resolve_plan(model)
    assert not any("absent" in name for name in (*plan.units, *plan.tensor))


def test_a_declared_class_that_is_not_in_the_model_is_no_error():
    model = llama()
    model._no_split_modules = {"LlamaDecoderLayer", "LlamaVisionLayer"}
    assert len(resolve_plan(model).units) == 3


def test_a_model_that_declares_no_blocks_has_those_that_repeat_and_the_embedding_it_names():
    config = transformers.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    plan = resolve_plan(
        transformers.DistilBertForMaskedLM(config)
    )  # whose largest embedding is that of positions
    assert plan.units == ("distilbert.embeddings.word_embeddings", *layers("distilbert.transformer.layer"))
    assert plan.tail == ("vocab_layer_norm", "vocab_projector")


def test_the_normalisation_of_an_embedding_is_not_the_final_one():
    config = transformers.BartConfig(
        vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    plan = resolve_plan(transformers.BartForConditionalGeneration(config))
    assert plan.units == ("model.shared", "model.encoder.layers.0", "model.decoder.layers.0")
    assert plan.tail == ("lm_head",)


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = llama().model
        self.value = nn.Linear(16, 1)


def test_a_model_around_a_model_of_transformers_has_the_plan_of_what_is_inside():
    plan = resolve_plan(RewardModel())
    assert plan.units == ("backbone.embed_tokens", *layers("backbone.layers"))
    assert plan.tail == ("backbone.norm", "value")


def test_an_adapted_model_has_the_plan_of_what_is_inside():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "down_proj"])
    plan = resolve_plan(peft.get_peft_model(llama(), config))
    inner = "base_model.model"
    assert plan.units == (f"{inner}.model.embed_tokens", *layers(f"{inner}.model.layers"))
    assert plan.tail == (f"{inner}.model.norm", f"{inner}.lm_head")


def test_an_adapted_head_and_embedding_are_still_found():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"])
    plan = resolve_plan(peft.get_peft_model(llama(), config))
    assert plan.units[0] == "base_model.model.model.embed_tokens"
    assert plan.tail[-1] == "base_model.model.lm_head"
