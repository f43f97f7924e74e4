from __future__ import annotations

import pytest

from accel_backends import AORecipeKwargs, FP8RecipeKwargs, MSAMPRecipeKwargs, TERecipeKwargs, collect
from accel_state.environment import patch_environment
from accel_state.errors import ConfigError, UnknownNameError

VARIABLES = {
    "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL": "true",
    "ACCELERATE_FP8_MARGIN": "3",
    "ACCELERATE_FP8_INTERVAL": "4",
    "ACCELERATE_FP8_FORMAT": "E4M3",
    "ACCELERATE_FP8_AMAX_HISTORY_LEN": "16",
    "ACCELERATE_FP8_AMAX_COMPUTE_ALGO": "max",
    "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING": "true",
    "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER": "false",
    "ACCELERATE_FP8_PAD_INNER_DIM": "false",
    "FP8_OVERRIDE_FPROP": "true",
    "FP8_OVERRIDE_DGRAD": "false",
    "FP8_OVERRIDE_WGRAD": "true",
}


def test_without_anything_the_documented_defaults_hold():
    handler = TERecipeKwargs()
    assert (handler.margin, handler.interval, handler.fp8_format) == (0, 1, "HYBRID")
    assert (handler.amax_history_len, handler.amax_compute_algo) == (1024, "most_recent")
    assert handler.override_linear_precision == (False, False, False)
    assert (handler.use_autocast_during_eval, handler.scaling) == (False, "delayed")
    assert handler.to_kwargs() == {}


def test_the_launchers_variables_fill_what_is_not_given():
    with patch_environment(**VARIABLES):
        handler, ao = TERecipeKwargs(margin=5), AORecipeKwargs(pad_inner_dim=True)
    assert (handler.margin, handler.interval, handler.fp8_format, handler.amax_history_len) == (
        5,
        4,
        "E4M3",
        16,
    )
    assert (handler.amax_compute_algo, handler.use_autocast_during_eval) == ("max", True)
    assert handler.override_linear_precision == (True, False, True)
    assert handler.scaling == "mxfp8"
    assert (ao.pad_inner_dim, ao.enable_fsdp_float8_all_gather) == (True, False)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (TERecipeKwargs, {"fp8_format": "HYBRD"}, "Unknown `fp8_format` `HYBRD`.*Did you mean `HYBRID`"),
        (TERecipeKwargs, {"amax_compute_algo": "mean"}, "Unknown `amax_compute_algo` `mean`"),
        (TERecipeKwargs, {"scaling": "rows"}, "Unknown `scaling` `rows`"),
    ],
)
def test_unknown_words_are_refused(kind, values, message):
    with pytest.raises(UnknownNameError, match=message):
        kind(**values)


def test_values_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="`use_mxfp8_block_scaling` and `scaling='block'` contradict"):
        TERecipeKwargs(use_mxfp8_block_scaling=True, scaling="block")
    with pytest.raises(ConfigError, match="must be three of True and False, got .True,."):
        TERecipeKwargs(override_linear_precision=(True,))


@pytest.mark.parametrize(
    ("values", "margin"),
    [({"backend": "te", "margin": 2}, 2), ({"margin": 1}, 1)],
)
def test_the_older_handler_stands_for_that_of_transformer_engine(values, margin):
    with pytest.warns(FutureWarning, match="`FP8RecipeKwargs` is deprecated: pass `TERecipeKwargs`"):
        handler = FP8RecipeKwargs(**values)
    recipe = handler.recipe()
    assert type(recipe) is TERecipeKwargs
    assert recipe.margin == margin
    assert list(collect([handler])) == [FP8RecipeKwargs]


@pytest.mark.filterwarnings("ignore:`FP8RecipeKwargs`:FutureWarning")
def test_the_older_handler_knows_no_torchao():
    with pytest.raises(ConfigError, match="must be `TE`, got `AO`. For torchao pass `AORecipeKwargs`"):
        FP8RecipeKwargs(backend="AO")


@pytest.mark.filterwarnings("ignore:`FP8RecipeKwargs`:FutureWarning")
@pytest.mark.parametrize(
    ("kind", "values", "variables"),
    [
        (MSAMPRecipeKwargs, {}, {}),
        (MSAMPRecipeKwargs, {"opt_level": "O1"}, {}),
        (FP8RecipeKwargs, {"backend": "msamp"}, {}),
        (FP8RecipeKwargs, {"opt_level": "O2"}, {}),
        (FP8RecipeKwargs, {}, {"ACCELERATE_FP8_BACKEND": "MSAMP"}),
    ],
)
def test_ms_amp_is_refused_with_what_to_use(kind, values, variables):
    with patch_environment(**variables):
        with pytest.raises(
            ConfigError,
            match="MS-AMP needs torch 2.1, on which accel does not run. Use torchao .*AO.* or Transformer Engine .*TE",
        ):
            kind(**values)
