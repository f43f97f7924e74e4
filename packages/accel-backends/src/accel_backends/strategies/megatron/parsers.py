"""From the config of a model of transformers to the arguments of Megatron-LM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from accel_backends.plugins.megatron import MegatronLMPlugin
from accel_state.errors import ConfigError, UnknownNameError

Parser = Callable[[MegatronLMPlugin, nn.Module, Any], Any]
"""Called with the plugin, the model and the first batch (None, since batches may differ in length)."""

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


def parse_model(plugin: MegatronLMPlugin, model: nn.Module) -> None:
    """Let the parser of a model's type fill the plugin.

    Raises:
        UnknownNameError: If there is none for its type.
        ConfigError: If the model has no config.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type is None:
        raise ConfigError(
            f"The {type(model).__name__} has no `config.model_type`, from which Megatron-LM makes a model of its own. "
            "Prepare a model of transformers, or set `custom_model_provider_function` of the MegatronLMPlugin and give "
            "the model a config."
        )
    if model_type not in MODEL_CONFIGS_TO_MEGATRON_PARSERS:
        raise UnknownNameError.of("model type for Megatron-LM", model_type, MODEL_CONFIGS_TO_MEGATRON_PARSERS)
    plugin.megatron_lm_default_args.clear()
    MODEL_CONFIGS_TO_MEGATRON_PARSERS[model_type](plugin, model, None)


@add_model_config_to_megatron_parser("gpt2")
def parse_gpt2_config(megatron_lm_plugin: MegatronLMPlugin, model: Any, batch_data: Any) -> None:
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
def parse_llama_config(megatron_lm_plugin: MegatronLMPlugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a Llama."""
    config = model.config
    if config.mlp_bias or config.attention_bias:
        raise ConfigError(
            "`mlp_bias` and `attention_bias` of a Llama's config are not taken over to Megatron-LM. Set them to False."
        )
    megatron_lm_plugin.megatron_lm_default_args.update(
        model_type_name="gpt",
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        add_bias_linear=False,
        attention_dropout=config.attention_dropout,
        hidden_dropout=0.0,
        **_rotary(config),
        **_llama_like(config),
    )


@add_model_config_to_megatron_parser("glm4_moe")
def parse_glm4_moe_config(megatron_lm_plugin: MegatronLMPlugin, model: Any, batch_data: Any) -> None:
    """Fill the plugin from the config of a GLM-4 with experts."""
    config = model.config
    num_dense = config.first_k_dense_replace
    megatron_lm_plugin.megatron_lm_default_args.update(
        model_type_name="gpt",
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        add_bias_linear=False,
        add_qkv_bias=config.attention_bias,
        qk_layernorm=config.use_qk_norm,
        attention_dropout=config.attention_dropout,
        hidden_dropout=0.0,
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
        **_rotary(config),
        **_llama_like(config),
    )


@add_model_config_to_megatron_parser("megatron-bert")
def parse_bert_config(megatron_lm_plugin: MegatronLMPlugin, model: Any, batch_data: Any) -> None:
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
def parse_t5_config(megatron_lm_plugin: MegatronLMPlugin, model: Any, batch_data: Any) -> None:
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
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "ffn_hidden_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "normalization": "RMSNorm",
        "norm_epsilon": config.rms_norm_eps,
        "swiglu": True,
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
