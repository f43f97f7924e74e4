"""A recipe of Transformer Engine from the settings of a user."""

from __future__ import annotations

import dataclasses
from typing import Any

from accel_backends.handlers.fp8 import TERecipeKwargs
from accel_backends.precisions.fp8.te_package import recipes, transformer_engine
from accel_state.errors import ConfigError, NotAvailableError

_CLASSES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
}
_CHECKS = {
    "delayed": "is_fp8_available",
    "current": "is_fp8_available",
    "block": "is_fp8_block_scaling_available",
    "mxfp8": "is_mxfp8_available",
}
_NOT_OF_THE_RECIPE = frozenset(
    {"use_autocast_during_eval", "use_mxfp8_block_scaling", "scaling", "override_linear_precision"}
)
_ALWAYS_SAID = ("margin", "fp8_format", "amax_history_len", "amax_compute_algo")


def make_recipe(settings: TERecipeKwargs) -> Any:
    """Return the recipe that ``settings`` describe.

    Raises:
        ConfigError: If a setting has no effect in it.
        NotAvailableError: If the installed version does not have it.
    """
    scaling = str(settings.scaling)
    kind = getattr(recipes(), _CLASSES[scaling], None)
    if kind is None:
        raise NotAvailableError(
            f"This Transformer Engine has no `{_CLASSES[scaling]}`, which `scaling={scaling!r}` needs. Run `pip "
            "install -U 'transformer_engine[pytorch]'`."
        )
    known = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in settings.to_kwargs().items() if name not in _NOT_OF_THE_RECIPE}
    if scaling == "delayed":
        # Its defaults are not those of the library.
        values |= {name: getattr(settings, name) for name in _ALWAYS_SAID}
    for name in values:
        if name not in known:
            raise ConfigError(
                f"`{name}={values[name]!r}` has no effect with `scaling={scaling!r}` in this version of Transformer "
                "Engine. Leave it out."
            )
    values |= _override(settings, known)
    if "fp8_format" in values:
        if values["fp8_format"] == "E5M2":
            raise ConfigError(
                "`fp8_format=E5M2` cannot train, says Transformer Engine. Use `HYBRID` or `E4M3`."
            )
        values["fp8_format"] = recipes().Format[values["fp8_format"]]
    return kind(**values)


def check_gpu(settings: TERecipeKwargs) -> None:
    """Refuse a recipe that this GPU cannot compute.

    Raises:
        ConfigError: With the reason that the library gives.
    """
    scaling = str(settings.scaling)
    is_available, reason = getattr(transformer_engine(), _CHECKS[scaling])(return_reason=True)
    if not is_available:
        raise ConfigError(
            f"`scaling={scaling!r}` of Transformer Engine cannot be computed here: {reason} Choose another "
            "`scaling` in `TERecipeKwargs`, or `mixed_precision=bf16`."
        )


def _override(settings: TERecipeKwargs, known: set[str]) -> dict[str, Any]:
    """Return what computes products in higher precision."""
    override = settings.override_linear_precision
    if override == (False, False, False):
        return {}
    if "override_linear_precision" in known:
        return {"override_linear_precision": override}
    if override == (False, True, True) and "backward_override" in known and settings.scaling != "delayed":
        return {"backward_override": "high_precision"}
    raise ConfigError(
        f"`override_linear_precision={override}` has no effect with `scaling={settings.scaling!r}` in this version of "
        "Transformer Engine, where only both products of the backward pass can be in higher precision, and not with "
        "`delayed`: `(False, True, True)`. Leave it out, or choose that with another `scaling`."
    )
