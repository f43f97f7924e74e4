"""From the config of a model of transformers, and from an optimizer of torch's, to the arguments of Megatron-LM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from accel_state.errors import ConfigError


class Plugin(Protocol):
    """What a parser uses of the `MegatronLMPlugin`."""

    encoder_seq_length: int | None
    decoder_seq_length: int | None
    megatron_lm_default_args: dict[str, Any]


Parser = Callable[[Plugin, nn.Module, Any], Any]
"""Called with the plugin, the model and a batch (None from `prepare`, since batches may differ in length)."""

MODEL_CONFIGS_TO_MEGATRON_PARSERS: dict[str, Parser] = {}
"""What fills `MegatronLMPlugin.megatron_lm_default_args`, by the ``model_type`` of a model's config."""


def add_model_config_to_megatron_parser(model_type: str) -> Callable[[Parser], Parser]:
    """Return a decorator that makes a function the parser for models whose config has that ``model_type``.

    The function writes the arguments of Megatron-LM into the plugin's ``megatron_lm_default_args``, among them
    ``model_type_name``: ``gpt``, ``bert`` or ``t5``.
    """

    def add(parser: Parser) -> Parser:
        MODEL_CONFIGS_TO_MEGATRON_PARSERS[model_type] = parser
        return parser

    return add


def optimizer_settings(client: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the settings of an optimizer of torch's, by the names of megatron-core's.

    Its parameter groups may differ in their weight decay: Megatron-LM lets all but biases and other vectors decay.

    Raises:
        ConfigError: If it is neither Adam, AdamW nor SGD, or its groups differ otherwise.
    """
    name = type(client).__name__
    if name not in ("Adam", "AdamW", "SGD"):
        raise ConfigError(
            f"Megatron-LM has no optimizer like {name}. Prepare a `torch.optim.AdamW`, `Adam` or `SGD`, of which "
            "megatron-core makes its own."
        )
    rates = {float(group["lr"]) for group in client.param_groups}
    if len(rates) > 1:
        raise ConfigError(
            f"The parameter groups of the {name} have different learning rates: {', '.join(map(str, sorted(rates)))}. "
            "Use one, with `scale_lr_cond` and `lr_mult` of the MegatronLMPlugin."
        )
    decay = max(float(group["weight_decay"]) for group in client.param_groups)
    first = client.param_groups[0]
    common = {"lr": rates.pop(), "weight_decay": decay}
    if name == "SGD":
        return {**common, "optimizer": "sgd", "sgd_momentum": first["momentum"]}
    beta_1, beta_2 = first["betas"]
    return {
        **common,
        "optimizer": "adam",
        "adam_beta1": beta_1,
        "adam_beta2": beta_2,
        "adam_eps": first["eps"],
        "decoupled_weight_decay": name == "AdamW",
    }


@add_model_config_to_megatron_parser("gpt2")
def parse_gpt2_config(megatron_lm_plugin: Plugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a GPT-2."""
    config = model.config
    megatron_lm_plugin.megatron_lm_default_args.update(
        model_type_name="gpt",
        num_layers=config.n_layer,
        hidden_size=config.n_embd,
        num_attention_heads=config.n_head,
        ffn_hidden_size=config.n_inner or 4 * config.n_embd,
        max_position_embeddings=config.n_positions,
        position_embedding_type="learned_absolute",
        attention_dropout=config.attn_pdrop,
        hidden_dropout=config.resid_pdrop,
        norm_epsilon=config.layer_norm_epsilon,
        **_activation(config.activation_function),
        **_common(config),
    )


@add_model_config_to_megatron_parser("llama")
def parse_llama_config(megatron_lm_plugin: Plugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a Llama."""
    config = model.config
    if config.mlp_bias or config.attention_bias:
        raise ConfigError(
            "`mlp_bias` and `attention_bias` of a Llama's config are not taken over to Megatron-LM. Set them to False."
        )
    megatron_lm_plugin.megatron_lm_default_args.update(_llama_like(config))


@add_model_config_to_megatron_parser("glm4_moe")
def parse_glm4_moe_config(megatron_lm_plugin: Plugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a GLM-4 with experts."""
    config = model.config
    num_dense = config.first_k_dense_replace
    megatron_lm_plugin.megatron_lm_default_args.update(
        add_qkv_bias=config.attention_bias,
        qk_layernorm=config.use_qk_norm,
        num_experts=config.n_routed_experts,
        moe_layer_freq=[0] * num_dense + [1] * (config.num_hidden_layers - num_dense),
        moe_ffn_hidden_size=config.moe_intermediate_size,
        moe_shared_expert_intermediate_size=config.moe_intermediate_size * config.n_shared_experts or None,
        moe_router_topk=config.num_experts_per_tok,
        moe_router_num_groups=config.n_group if config.n_group > 1 else None,
        moe_router_group_topk=config.topk_group if config.n_group > 1 else None,
        moe_router_topk_scaling_factor=config.routed_scaling_factor,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_load_balancing_type="none",
        **_llama_like(config),
    )


@add_model_config_to_megatron_parser("megatron-bert")
def parse_bert_config(megatron_lm_plugin: Plugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a Megatron-BERT, which is trained by its masked tokens.

    Raises:
        ConfigError: If the model has another head.
    """
    config, name = model.config, type(model).__name__
    heads = {"MegatronBertForPreTraining": True, "MegatronBertForMaskedLM": False}
    if name not in heads:
        raise ConfigError(
            f"Megatron-LM trains a BERT by its masked tokens, but the {name} has another head. Prepare a "
            f"{' or '.join(heads)}, or set `custom_model_provider_function` of the MegatronLMPlugin."
        )
    megatron_lm_plugin.megatron_lm_default_args.update(
        model_type_name="bert",
        pretraining_flag=True,
        bert_binary_head=heads[name],
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        ffn_hidden_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        position_embedding_type="learned_absolute",
        attention_dropout=config.attention_probs_dropout_prob,
        hidden_dropout=config.hidden_dropout_prob,
        norm_epsilon=config.layer_norm_eps,
        num_tokentypes=config.type_vocab_size,
        **_activation(config.hidden_act),
        **_common(config),
    )


@add_model_config_to_megatron_parser("t5")
def parse_t5_config(megatron_lm_plugin: Plugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a T5; positions are learned, as Megatron-LM's T5 has them."""
    config = model.config
    longest = config.n_positions if hasattr(config, "n_positions") else 512
    megatron_lm_plugin.megatron_lm_default_args.update(
        model_type_name="t5",
        encoder_num_layers=config.num_layers,
        num_layers=config.num_decoder_layers,
        hidden_size=config.d_model,
        num_attention_heads=config.num_heads,
        kv_channels=config.d_kv,
        ffn_hidden_size=config.d_ff,
        max_position_embeddings=max(
            megatron_lm_plugin.encoder_seq_length or longest, megatron_lm_plugin.decoder_seq_length or longest
        ),
        position_embedding_type="learned_absolute",
        attention_dropout=config.dropout_rate,
        hidden_dropout=config.dropout_rate,
        norm_epsilon=config.layer_norm_epsilon,
        decoder_start_token_id=getattr(config, "decoder_start_token_id", None) or 0,
        **_activation(config.dense_act_fn, is_gated=config.is_gated_act),
        **_common(config),
    )


def _common(config: Any) -> dict[str, Any]:
    return {
        "orig_vocab_size": config.vocab_size,
        "untie_embeddings_and_output_weights": not config.tie_word_embeddings,
        "init_method_std": getattr(config, "initializer_range", 0.02),
        "eos_token_id": config.eos_token_id,
        "model_return_dict": getattr(config, "return_dict", True),
    }


def _llama_like(config: Any) -> dict[str, Any]:
    return {
        "model_type_name": "gpt",
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": config.head_dim,
        "add_bias_linear": False,
        "attention_dropout": config.attention_dropout,
        "hidden_dropout": 0.0,
        "num_attention_heads": config.num_attention_heads,
        "ffn_hidden_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "normalization": "RMSNorm",
        "norm_epsilon": config.rms_norm_eps,
        "swiglu": True,
        **_rotary(config),
        **_common(config),
    }


def _rotary(config: Any) -> dict[str, Any]:
    rope = dict(getattr(config, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "llama3"):
        raise ConfigError(
            f"`rope_type` of the model's config is `{kind}`, but Megatron-LM has `default` and `llama3`. Use one of "
            "them."
        )
    scaling = {"use_rope_scaling": True, "rope_scaling_factor": rope["factor"]} if kind == "llama3" else {}
    return {
        "position_embedding_type": "rope",
        "rotary_base": rope.get("rope_theta", 10000.0),
        "rotary_percent": rope.get("partial_rotary_factor", 1.0),
        **scaling,
    }


def _activation(name: str, *, is_gated: bool = False) -> dict[str, Any]:
    """Return the arguments for an activation; the fused one of Megatron-LM is the approximation ``gelu_new``."""
    if name not in ("gelu", "gelu_new", "relu"):
        raise ConfigError(
            f"The activation of the model's config is `{name}`, but here Megatron-LM has `gelu`, `gelu_new` and "
            "`relu`. Use one of them."
        )
    further: dict[str, Any] = {"activation_func": nn.functional.relu} if name == "relu" else {}
    gate = {"gated_linear_unit": True} if is_gated else {}
    return {"bias_activation_fusion": name == "gelu_new", **gate, **further}
