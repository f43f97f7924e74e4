"""This rank's parts of a model of megatron-core, made from the arguments of Megatron-LM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from accel_backends.plugins.megatron import MegatronLMPlugin
from accel_backends.strategies.megatron.packages import check_device, core
from accel_state.availability import is_transformer_engine_available
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.user_warnings import warn_user

_NAMES = {"norm_epsilon": "layernorm_epsilon", "num_experts": "num_moe_experts"}
"""Arguments of Megatron-LM that the config of megatron-core calls otherwise."""
_OF_MODEL = frozenset(
    {
        "bert_binary_head", "decoder_start_token_id", "encoder_num_layers", "eos_token_id",
        "make_vocab_size_divisible_by", "max_position_embeddings", "model_return_dict", "model_type_name",
        "num_labels", "num_tokentypes", "orig_vocab_size", "padded_vocab_size", "position_embedding_type",
        "pretraining_flag", "rope_scaling_factor", "rotary_base", "rotary_percent", "seq_length",
        "untie_embeddings_and_output_weights", "use_rope_scaling",
    }
)  # fmt: skip
"""Arguments that the config of megatron-core does not have."""
_POSITIONS = {"absolute": "learned_absolute", "rotary": "rope"}
_WITHOUT_EFFECT = ("vocab_file", "merge_file")


def model_arguments(plugin: MegatronLMPlugin, layout: MeshLayout) -> dict[str, Any]:
    """Return the arguments of a model: those that its parser found, under those of the plugin and its further ones.

    Raises:
        ConfigError: If megatron-core has nothing like one of them.
    """
    own: dict[str, Any] = {
        "attention_dropout": plugin.attention_dropout,
        "hidden_dropout": plugin.hidden_dropout,
        "attention_softmax_in_fp32": plugin.attention_softmax_in_fp32,
        "calculate_per_token_loss": plugin.calculate_per_token_loss,
        "position_embedding_type": "rope" if plugin.use_rotary_position_embeddings else None,
        "seq_length": plugin.seq_length,
        "num_layers_in_last_pipeline_stage": plugin.decoder_last_pipeline_num_layers,
        "recompute_granularity": "selective"
        if plugin.recompute_activations
        else plugin.recompute_granularity,
        "recompute_method": plugin.recompute_method,
        "recompute_num_layers": plugin.recompute_num_layers,
    }
    given = dict(plugin.other_megatron_args or {})
    heads = given.pop("attention_head_type", "multihead")
    if heads not in ("multihead", "multiquery"):
        raise ConfigError(
            f"`attention_head_type` of `other_megatron_args` must be multihead or multiquery, got {heads!r}."
        )
    if heads == "multiquery":
        own["num_query_groups"] = layout.tp  # keys and values are cut over these ranks: one head for each
    arguments = {
        **plugin.megatron_lm_default_args,
        **{name: value for name, value in own.items() if value is not None},
        **given,
    }
    for name in _WITHOUT_EFFECT:
        if arguments.pop(name, None) is not None:
            warn_user(
                f"`{name}` of `other_megatron_args` has no effect: the script tokenizes its texts itself. "
                "Leave it out.",
            )
    position = arguments.get("position_embedding_type", "learned_absolute")
    if position == "alibi":
        raise ConfigError(
            "`position_embedding_type` of `other_megatron_args` is `alibi`, which megatron-core does not have. Use "
            "`absolute` or `rotary`."
        )
    arguments["position_embedding_type"] = _POSITIONS.get(position, position)
    if plugin.seq_length is not None:
        arguments["max_position_embeddings"] = max(
            plugin.seq_length, arguments.get("max_position_embeddings", 1)
        )
    return arguments


def padded_vocabulary(arguments: Mapping[str, Any], *, num_shards: int) -> int:
    """Return the size of the vocabulary, filled up so that each rank that shares layers has as much of it."""
    if "padded_vocab_size" in arguments:
        return int(arguments["padded_vocab_size"])
    step = arguments.get("make_vocab_size_divisible_by", 128) * num_shards
    size: int = -(-int(arguments["orig_vocab_size"]) // step) * step
    return size


def transformer_config(
    arguments: Mapping[str, Any],
    plugin: MegatronLMPlugin,
    layout: MeshLayout,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    further: frozenset[str] = frozenset(),
) -> Any:
    """Return the `megatron.core.transformer.TransformerConfig`.

    Args:
        arguments: Of the model.
        plugin: The settings.
        layout: How the ranks are arranged.
        dtype: What the model computes in; None: float32.
        device: Where its parameters are made.
        further: Arguments that others take.

    Raises:
        ConfigError: If nobody takes an argument, or the values contradict each other.
    """
    kind = core("transformer").TransformerConfig
    known = {field.name for field in fields(kind) if field.init}
    values = {_NAMES.get(name, name): value for name, value in arguments.items()}
    is_gated = values.pop("swiglu", False)
    unknown = sorted(set(values) - known - _OF_MODEL - further)
    if unknown:
        raise ConfigError(
            f"megatron-core has no argument {', '.join(f'`{name}`' for name in unknown)}. Take it out of "
            "`other_megatron_args` or of what the parser of the model wrote."
        )
    own = {name: value for name, value in values.items() if name in known}
    num_layers = own["num_layers"]
    per_part = plugin.num_layers_per_virtual_pipeline_stage
    num_parts = None if per_part is None else num_virtual_stages(num_layers, layout.pp, per_part)
    config = {
        "activation_func": F.silu if is_gated else F.gelu,
        "gated_linear_unit": is_gated,
        "params_dtype": dtype or torch.float32,
        "pipeline_dtype": dtype or torch.float32,
        "bf16": dtype is torch.bfloat16,
        "fp16": dtype is torch.float16,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": num_parts,
        # Two ranks are each other's neighbours in both directions: what they send in one batch would be mixed up.
        "overlap_p2p_comm": num_parts is not None,
        "batch_p2p_comm": num_parts is None,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": plugin.expert_model_parallel_size or 1,
        "expert_tensor_parallel_size": plugin.expert_tensor_parallel_size,
        "sequence_parallel": bool(plugin.sequence_parallelism) and layout.tp > 1,
        "variable_seq_lengths": layout.pp > 1,
        "moe_token_dispatcher_type": "alltoall",  # the only one that takes batches of any length
        "use_cpu_initialization": device.type == "cpu",
    }
    if plugin.attention_backend is False:
        config["attention_backend"] = core("transformer.enums").AttnBackend.unfused
    _check(config, layout, has_engine=uses_transformer_engine(device))
    try:
        return kind(**{**config, **own})
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"megatron-core refuses the model's arguments: {error}. "
            "Correct them in `other_megatron_args` or in the model's config."
        ) from error


def num_virtual_stages(num_layers: int, num_stages: int, per_part: int) -> int:
    """Return how many parts of the pipeline each rank has.

    Raises:
        ConfigError: If the layers cannot be divided so.
    """
    if num_stages < 2 or num_layers % (num_stages * per_part):
        raise ConfigError(
            f"`num_layers_per_virtual_pipeline_stage` {per_part} times `pp_degree` {num_stages} must divide the "
            f"{num_layers} layers, with a `pp_degree` of at least 2."
        )
    return num_layers // (num_stages * per_part)


def uses_transformer_engine(device: torch.device) -> bool:
    """Whether layers are those of Transformer Engine, in place of megatron-core's own."""
    return device.type == "cuda" and is_transformer_engine_available()


def build_parts(
    arguments: Mapping[str, Any], config: Any, plugin: MegatronLMPlugin, *, device: torch.device
) -> list[nn.Module]:
    """Return this rank's parts of the model, in the order of the pipeline, with values drawn at random.

    Raises:
        ConfigError: If the kind of model cannot be divided as the layout says.
        NotAvailableError: If stages share weights, or there are experts, and no CUDA device.
    """
    state = core("parallel_state")
    num_parts = config.virtual_pipeline_model_parallel_size
    state.set_virtual_pipeline_model_parallel_world_size(num_parts)
    make = PROVIDERS[arguments["model_type_name"]]
    if make is not _gpt and (num_parts or config.context_parallel_size > 1):
        raise ConfigError(
            f"A {arguments['model_type_name']} of megatron-core can have neither several parts of a pipeline on a rank "
            "nor shared sequences. Leave `num_layers_per_virtual_pipeline_stage` and `context_parallel_size` out."
        )
    places: list[int | None] = [None] if num_parts is None else list(range(num_parts))
    ends = [
        {
            "pre_process": state.is_pipeline_first_stage(ignore_virtual=place is None, vp_stage=place),
            "post_process": state.is_pipeline_last_stage(ignore_virtual=place is None, vp_stage=place),
        }
        for place in places
    ]
    if plugin.custom_model_provider_function is not None:
        return [plugin.custom_model_provider_function(**end) for end in ends]
    is_tied = not arguments.get("untie_embeddings_and_output_weights", False)
    if config.num_moe_experts or (is_tied and config.pipeline_model_parallel_size > 1):
        check_device()
    vocabulary = padded_vocabulary(arguments, num_shards=config.tensor_model_parallel_size)
    common = {
        "vocab_size": vocabulary,
        "max_sequence_length": arguments["max_position_embeddings"],
        "share_embeddings_and_output_weights": is_tied,
        "position_embedding_type": arguments["position_embedding_type"],
    }
    return [
        make(
            SimpleNamespace(**arguments),
            config,
            {**common, **end},
            has_engine=uses_transformer_engine(device),
            place=place,
        )
        for place, end in zip(places, ends, strict=True)
    ]


def _gpt(
    arguments: Any, config: Any, common: dict[str, Any], *, has_engine: bool, place: int | None
) -> nn.Module:
    specs = core("models.gpt.gpt_layer_specs")
    if config.num_moe_experts:
        spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=has_engine, vp_stage=place)
    elif has_engine:
        spec = specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    else:
        spec = specs.get_gpt_layer_local_spec(
            qk_layernorm=config.qk_layernorm, normalization=config.normalization
        )
    model: nn.Module = core("models.gpt").GPTModel(
        config,
        spec,
        **common,
        rotary_percent=getattr(arguments, "rotary_percent", 1.0),
        rotary_base=getattr(arguments, "rotary_base", 10000),
        rope_scaling=getattr(arguments, "use_rope_scaling", False),
        rope_scaling_factor=getattr(arguments, "rope_scaling_factor", 8.0),
        vp_stage=place,
    )
    return model


def _bert(
    arguments: Any, config: Any, common: dict[str, Any], *, has_engine: bool, place: int | None
) -> nn.Module:
    specs = core("models.bert.bert_layer_specs")
    spec = specs.get_bert_layer_with_transformer_engine_spec() if has_engine else specs.bert_layer_local_spec
    model: nn.Module = core("models.bert.bert_model").BertModel(
        config,
        arguments.num_tokentypes,
        spec,
        **common,
        add_binary_head=arguments.bert_binary_head,
    )
    return model


def _t5(
    arguments: Any, config: Any, common: dict[str, Any], *, has_engine: bool, place: int | None
) -> nn.Module:
    if config.pipeline_model_parallel_size > 1:
        raise ConfigError(
            f"`pp_degree` is {config.pipeline_model_parallel_size}, but megatron-core 0.16 has no pipelines of an "
            "encoder and a decoder. Set it to 1."
        )
    specs = core("models.T5.t5_spec")
    kind = "transformer_engine" if has_engine else "local"
    encoder = getattr(specs, f"get_t5_encoder_with_{kind}_block_spec")(arguments.encoder_num_layers)
    decoder = getattr(specs, f"get_t5_decoder_with_{kind}_block_spec")(config.num_layers)
    values = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    encoder_config = type(config)(**{**values, "num_layers": arguments.encoder_num_layers})
    model: nn.Module = core("models.T5").T5Model(config, encoder_config, encoder, decoder, **common)
    return model


PROVIDERS = {"gpt": _gpt, "bert": _bert, "t5": _t5}
"""What makes a part of a model of each kind."""


def _check(config: Mapping[str, Any], layout: MeshLayout, *, has_engine: bool) -> None:
    if has_engine:
        return
    for name, is_on in (
        ("context_parallel_size", layout.cp > 1),
        ("sequence_parallelism", config["sequence_parallel"]),
    ):
        if is_on:
            raise ConfigError(
                f"`{name}` needs layers of Transformer Engine, which is not installed or has no CUDA device here. "
                "Install `transformer_engine[pytorch]`, or leave it out."
            )
