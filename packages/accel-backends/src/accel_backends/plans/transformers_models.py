"""What the models of transformers say about themselves. No other file knows their attributes.

transformers is not imported: only attributes of the model are read. Models of other libraries that have
``_no_split_modules``, such as those of diffusers, are read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from accel_backends.plans.declared import combined
from accel_backends.plans.model_names import ModelNames, NamedModule, joined, outermost
from accel_backends.plans.repeated_blocks import after_blocks, final_head, final_norm, find_blocks
from accel_state.errors import ConfigError

_NO_SPLIT = "_no_split_modules"
_SHAREABLE_LAYERS = {"full_attention", "sliding_attention"}
_UNIT_STYLE, _TAIL_STYLE = "free_full_weight", "keep_full_weight"


def declared_by_transformers(names: ModelNames) -> dict[str, Any]:
    """Return what the model, or the outermost modules of transformers in it, say about units, tail and parallelism."""
    parts = [_fields(names, named) for named in _pretrained(names)]
    return combined(parts) if parts else {}


def no_split_classes(names: ModelNames) -> list[str]:
    """Return the names of the classes that the model declares as its blocks and that occur in it, sorted."""
    declared = {name for named in _pretrained(names) for name in getattr(named.module, _NO_SPLIT) or ()}
    return sorted(declared.intersection(names.class_names()))


def kept_in_fp32(model: nn.Module, dtype: torch.dtype) -> list[str]:
    """Return the modules that the model wants to compute in fp32 where the rest computes in ``dtype``.

    As in transformers, ``_keep_in_fp32_modules`` is about fp16 alone, ``_keep_in_fp32_modules_strict`` about bf16 too.
    """
    attributes = ["_keep_in_fp32_modules_strict"]
    if dtype is torch.float16:
        attributes.append("_keep_in_fp32_modules")
    keys = {
        key
        for module in model.modules()
        for attribute in attributes
        for key in getattr(type(module), attribute, None) or ()
    }
    return [
        name
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in keys and next(module.parameters(), None) is not None
    ]


def check_attention_is_shareable(model: nn.Module) -> None:
    """Refuse models of transformers of which ranks that share sequences cannot compute the attention.

    Raises:
        ConfigError: Naming what the config says of it.
    """
    for module in modules_with_config(model):
        check_attention_is_sdpa(module)
        _check_layers(module, _own_config(module))


def check_layers_are_shareable(model: Any) -> None:
    """Refuse a model of transformers with layers that ranks that share sequences cannot compute, by its ``config``.

    Raises:
        ConfigError: Naming the kinds of layers.
    """
    config: Any = getattr(model, "config", None)
    _check_layers(model, config.get_text_config() if hasattr(config, "get_text_config") else config)


def _check_layers(module: Any, config: Any) -> None:
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _SHAREABLE_LAYERS)
    other += ["alibi"] if getattr(config, "alibi", False) else []  # a bias in the mask
    if other:
        raise ConfigError(
            f"`{type(module).__name__}` has layers of the kinds {', '.join(f'`{one}`' for one in other)}, which "
            "ranks that share sequences cannot compute together: a part of a sequence does not have what they "
            "need. Set `cp_size` and `sp_size` to 1."
        )


def modules_with_config(model: nn.Module) -> list[nn.Module]:
    """Return the modules of transformers in ``model``, itself included, that have a config of their own."""
    return [module for module in model.modules() if _own_config(module) is not None]


def check_attention_is_sdpa(module: nn.Module) -> None:
    """Refuse a module of transformers whose attention is now another one than ranks can compute together.

    Raises:
        ConfigError: Naming it.
    """
    config = _config_of(module)
    if config._attn_implementation != "sdpa":
        raise ConfigError(
            f"`{type(module).__name__}` has the attention `{config._attn_implementation}`, but ranks that share "
            'sequences compute only `sdpa` together. Load it with `attn_implementation="sdpa"`.'
        )


def _config_of(module: nn.Module) -> Any:
    return next((config for one in module.modules() if (config := _own_config(one)) is not None), None)


def _own_config(module: nn.Module) -> Any:
    config = vars(module).get("config")
    return config if hasattr(config, "_attn_implementation") else None


def declared_embeddings(names: ModelNames) -> list[NamedModule]:
    """Return the input embeddings that models of transformers in the model name."""
    found = (_asked(names, named, "get_input_embeddings") for named in _pretrained(names))
    return [embedding for embedding in found if embedding is not None]


def _pretrained(names: ModelNames) -> list[NamedModule]:
    # Not `hasattr`: PEFT passes attribute access on to the model inside it.
    return outermost(
        named
        for named in names.modules
        if any(_NO_SPLIT in vars(owner) for owner in (named.module, *type(named.module).__mro__))
    )


def _fields(names: ModelNames, model: NamedModule) -> dict[str, Any]:
    fields = _units_and_tail(names, model)
    for key, attribute in (("tensor", "_tp_plan"), ("experts", "_ep_plan")):
        if styled := _styled(names, model, getattr(model.module, attribute, None)):
            fields[key] = styled
    if attention := _attention(fields.get("units", ()), names):
        fields["attention"] = attention
    return fields


def _units_and_tail(names: ModelNames, model: NamedModule) -> dict[str, Any]:
    classes = set(getattr(model.module, _NO_SPLIT) or ())
    inside = [named for named in names if named.is_inside(model)]
    blocks = outermost(named for named in inside if named.class_name in classes and named.num_parameters)
    if not blocks and (fields := _fsdp_plan(names, model)):
        return fields
    blocks = blocks or find_blocks(model)
    if not blocks:
        return {}
    embedding = _asked(names, model, "get_input_embeddings")
    head = _asked(names, model, "get_output_embeddings")
    layers = after_blocks(names, blocks)
    ends = (final_norm(layers), head if head is not None else final_head(layers))
    units = {*blocks, embedding} if _is_free(embedding, blocks) else {*blocks}
    return {
        "units": tuple(named for named in inside if named in units),
        "tail": tuple(end for end in ends if end is not None and _is_free(end, blocks)),
    }


def _fsdp_plan(names: ModelNames, model: NamedModule) -> dict[str, Any]:
    plan: Mapping[str, str] = getattr(model.module, "_fsdp_plan", None) or {}
    styled = {
        named: style for rule, style in plan.items() for named in names.matching(joined(model.name, rule))
    }
    units = tuple(named for named in names if styled.get(named) == _UNIT_STYLE)
    tail = tuple(named for named in names if styled.get(named) == _TAIL_STYLE)
    return {"units": units, "tail": tail} if any(unit.num_parameters for unit in units) else {}


def _styled(names: ModelNames, model: NamedModule, plan: Mapping[str, str] | None) -> dict[str, str]:
    # A plan of transformers may have rules for parts that this model leaves out: they are made for a family.
    return {
        path: style
        for rule, style in (plan or {}).items()
        for path in names.paths_matching(joined(model.name, rule))
    }


def _attention(units: tuple[NamedModule, ...], names: ModelNames) -> tuple[NamedModule, ...]:
    attention = (named for named in names if "Attention" in named.class_name)
    return tuple(named for named in outermost(attention) if any(named.is_inside(unit) for unit in units))


def _asked(names: ModelNames, model: NamedModule, method: str) -> NamedModule | None:
    getter: Any = getattr(model.module, method, None)
    if getter is None:
        return None
    try:
        answer = getter()
    except NotImplementedError:  # how a model says that it has none
        return None
    return names.of(answer) if isinstance(answer, nn.Module) else None


def _is_free(named: NamedModule | None, blocks: list[NamedModule]) -> bool:
    return named is not None and not any(named.is_inside(block) for block in blocks)
