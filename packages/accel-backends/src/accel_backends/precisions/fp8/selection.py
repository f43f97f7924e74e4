"""Finds the library that computes in 8 bits, by what the user passed, the launcher's settings, or what is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_backends.handlers.fp8 import RECIPES, WITHOUT_MSAMP, FP8RecipeKwargs, Recipe
from accel_state.availability import why_not
from accel_state.enums import FP8BackendType
from accel_state.environment import read
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError
from accel_state.user_warnings import warn_user
from accel_state.versions import installed_version

if TYPE_CHECKING:
    from accel_backends.handlers.collection import Handlers
    from accel_backends.precisions.precision import Precision
    from accel_state.devices import DeviceBackend

_PACKAGES = {
    FP8BackendType.AO: "torchao",
    FP8BackendType.TE: "transformer_engine",
}


def fp8_precision(*, device_backend: DeviceBackend, handlers: Handlers) -> Precision:
    """Return the precision `fp8` of the library that was chosen.

    Raises:
        ConfigError: If two are chosen, or the device cannot do what is asked for.
        NotAvailableError: If the chosen library is not installed, or none is.
    """
    recipe = given_recipe(handlers) or recipe_named(_library_by_default())
    return _member(recipe.library)(device_backend=device_backend, handlers=handlers, recipe=recipe)


def given_recipe(handlers: Handlers) -> Recipe | None:
    """Return the recipe that the user passed, None if there is none.

    Raises:
        ConfigError: If there are several.
    """
    given: list[Any] = [handlers[kind] for kind in (FP8RecipeKwargs, *RECIPES.values()) if kind in handlers]
    if len(given) > 1:
        names = " and ".join(f"`{type(handler).__name__}`" for handler in given)
        raise ConfigError(
            f"`kwargs_handlers` has {names}, but one library computes in 8 bits. Pass one of them."
        )
    if not given:
        return None
    recipe: Recipe = given[0].recipe() if isinstance(given[0], FP8RecipeKwargs) else given[0]
    asked = read("fp8_backend")
    if asked not in ("NO", recipe.library):
        warn_user(
            f"The launcher asks for `fp8_backend` {asked}, the script for {recipe.library}; the script's holds. "
            "Say it in one place.",
        )
    return recipe


def recipe_named(name: FP8BackendType | str) -> Recipe:
    """Return the recipe of a library, with the launcher's settings.

    Args:
        name: `AO` or `TE`, in any case.

    Raises:
        ConfigError: If it is `MSAMP`, which cannot be used.
        UnknownNameError: If it is none of these.
    """
    if str(name).upper() == FP8BackendType.MSAMP:
        raise ConfigError(WITHOUT_MSAMP)
    found = next((backend for backend in RECIPES if backend.value == str(name).upper()), None)
    if found is None:
        raise UnknownNameError.of("`fp8_backend`", str(name), [backend.value for backend in RECIPES])
    return RECIPES[found]()


def _library_by_default() -> FP8BackendType:
    asked = read("fp8_backend")
    if asked != "NO":
        return FP8BackendType(asked)
    installed = next((backend for backend in RECIPES if why_not(_PACKAGES[backend]) is None), None)
    if installed is None:
        raise NotAvailableError(f"`mixed_precision=fp8` needs a library. {why_not('fp8')}")
    return installed


def _member(library: FP8BackendType) -> Callable[..., Precision]:
    """Return the class of a library's precision, which is imported only then."""
    reason = why_not(_PACKAGES[library])
    if reason is not None:
        raise NotAvailableError(f"`mixed_precision=fp8` with `fp8_backend={library}` cannot be had: {reason}")
    if library == FP8BackendType.AO:
        _check_torchao()
        from accel_backends.precisions.fp8.torchao import TorchAOPrecision

        return TorchAOPrecision
    from accel_backends.precisions.fp8.transformer_engine import TransformerEnginePrecision

    return TransformerEnginePrecision


def _check_torchao() -> None:
    """Raise `NotAvailableError` if torchao is not made for this torch."""
    try:
        import torchao.float8  # noqa: F401
    except ImportError as error:
        raise NotAvailableError(
            "`mixed_precision=fp8` with `fp8_backend=AO` cannot be had: torchao is installed, but its import fails: "
            f"{error}. It needs torch 2.11 or newer, this is {installed_version('torch')}."
        ) from error
