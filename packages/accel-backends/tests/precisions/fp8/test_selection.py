"""Which library computes in fp8, where several are installed, one, or none."""

from __future__ import annotations

import sys

import pytest

from accel_backends import (
    AORecipeKwargs,
    AutocastKwargs,
    FP8RecipeKwargs,
    TERecipeKwargs,
    collect,
    select_precision,
)
from accel_backends.precisions.fp8 import selection
from accel_state.enums import FP8BackendType, PrecisionType
from accel_state.environment import patch_environment
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError


@pytest.fixture
def installed(monkeypatch):
    """Return a function that makes only these packages be installed."""

    def only(*packages):
        def why_not(name):
            return None if name in packages else f"`{name}` is not installed."

        monkeypatch.setattr(selection, "why_not", why_not)

    return only


@pytest.mark.parametrize("name", ["fp8", PrecisionType.FP8])
def test_without_a_library_it_is_an_error_and_no_other_precision(installed, gpu, name):
    installed()
    with pytest.raises(
        NotAvailableError, match="`mixed_precision=fp8` needs a library. `fp8` is not installed"
    ):
        select_precision(name, device_backend=gpu)


def test_what_is_installed_is_taken_by_default(installed, te, gpu):
    installed("transformer_engine")
    assert select_precision("fp8", device_backend=gpu).fp8_backend == FP8BackendType.TE


@pytest.mark.parametrize(("variable", "package"), [("AO", "torchao"), ("TE", "transformer_engine")])
def test_what_the_launcher_names_is_taken_or_is_an_error(installed, gpu, variable, package):
    installed()
    with patch_environment(ACCELERATE_FP8_BACKEND=variable):
        with pytest.raises(
            NotAvailableError, match=f"`fp8_backend={variable}` cannot be had: `{package}` is not"
        ):
            select_precision("fp8", device_backend=gpu)


def test_ms_amp_by_the_launcher_is_refused_even_where_it_is_installed(gpu, monkeypatch):
    monkeypatch.setattr(selection, "why_not", lambda name: None)
    with patch_environment(ACCELERATE_FP8_BACKEND="MSAMP"):
        with pytest.raises(ConfigError, match="MS-AMP needs torch 2.1, on which accel does not run"):
            select_precision("fp8", device_backend=gpu)


def test_a_torchao_that_is_not_made_for_this_torch_is_an_error(installed, gpu, monkeypatch):
    installed("torchao")
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(
        NotAvailableError, match="torchao is installed, but its import fails: .*needs torch 2.11"
    ):
        select_precision("fp8", device_backend=gpu)


def test_the_script_wins_over_the_launcher_which_is_reported(te, gpu):
    with patch_environment(ACCELERATE_FP8_BACKEND="AO"):
        with pytest.warns(
            UserWarning, match="asks for `fp8_backend` AO, the script for TE; the script's holds"
        ):
            found = select_precision("fp8", device_backend=gpu, handlers=collect([TERecipeKwargs()]))
    assert found.fp8_backend == FP8BackendType.TE


def test_two_recipes_are_one_too_many(gpu):
    handlers = collect([AORecipeKwargs(), TERecipeKwargs()])
    with pytest.raises(ConfigError, match="has `AORecipeKwargs` and `TERecipeKwargs`, but one library"):
        select_precision("fp8", device_backend=gpu, handlers=handlers)


@pytest.mark.filterwarnings("ignore:`FP8RecipeKwargs`:FutureWarning")
def test_the_older_handler_chooses_too(te, gpu):
    handlers = collect([FP8RecipeKwargs(backend="TE", margin=1)])
    assert select_precision("fp8", device_backend=gpu, handlers=handlers).fp8_backend == FP8BackendType.TE


def test_names_are_known_in_any_case():
    assert type(selection.recipe_named("ao")) is AORecipeKwargs
    assert type(selection.recipe_named(FP8BackendType.TE)) is TERecipeKwargs
    with pytest.raises(UnknownNameError, match="Unknown `fp8_backend` `ta`. Known: AO, TE"):
        selection.recipe_named("ta")


def test_autocast_cannot_be_switched_off_next_to_fp8(te, gpu):
    handlers = collect([TERecipeKwargs(), AutocastKwargs(enabled=False)])
    with pytest.raises(ConfigError, match="leaves nothing in bf16"):
        select_precision("fp8", device_backend=gpu, handlers=handlers)
