"""How the libraries for 8-bit training compute: one handler for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from accel_state.enums import FP8BackendType
from accel_state.environment import read
from accel_state.errors import ConfigError, UnknownNameError
from accel_state.kwargs_handler import KwargsHandler
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:
    from torchao.float8 import Float8LinearConfig
else:  # torchao is optional; annotations can be evaluated without it
    Float8LinearConfig = Any

Scaling = Literal["delayed", "current", "block", "mxfp8"]

FORMATS = ("HYBRID", "E4M3", "E5M2")
ALGORITHMS = ("max", "most_recent")
SCALINGS = ("delayed", "current", "block", "mxfp8")

WITHOUT_MSAMP = (
    "MS-AMP needs torch 2.1, on which accel does not run. Use torchao (`fp8_backend=AO`, `AORecipeKwargs`) or "
    "Transformer Engine (`fp8_backend=TE`, `TERecipeKwargs`)."
)


@dataclass
class AORecipeKwargs(KwargsHandler):
    """8-bit training with torchao, on GPUs of compute capability 8.9 and newer and on CPUs.

    Attributes:
        config: torchao's own config, or one of its recipes by name: `tensorwise`, `rowwise` or `rowwise_with_gw_hp`.
        module_filter_func: Called with each `nn.Linear` and its name; whether it computes in 8 bits. By default all do
            but the first and the last.
        pad_inner_dim: Pad products along the dimension that they sum over, so that batches of any size can be
            multiplied. By default as ``config`` says; True where that is no config of torchao's.
        enable_fsdp_float8_all_gather: Gather the weights in 8 bits under FSDP version 2. By default as ``config`` says,
            or, where that is no config of torchao's, if weights have one scale each (`tensorwise`).
    """

    library: ClassVar[FP8BackendType] = FP8BackendType.AO

    config: Float8LinearConfig | str | None = None
    module_filter_func: Callable[[nn.Module, str], bool] | None = None
    pad_inner_dim: bool | None = None
    enable_fsdp_float8_all_gather: bool | None = None

    def __post_init__(self) -> None:
        _fill(self, "pad_inner_dim", "enable_fsdp_float8_all_gather")


@dataclass
class TERecipeKwargs(KwargsHandler):
    """8-bit training with Transformer Engine, on NVIDIA GPUs of compute capability 8.9 and newer.

    Attributes:
        use_autocast_during_eval: Compute in 8 bits in evaluation too.
        margin: Powers of two that the scale keeps below the largest value.
        interval: Steps between two computations of the scale; newer versions of the library compute it in each step.
        fp8_format: `HYBRID` (E4M3 forward, E5M2 backward), `E4M3` or `E5M2`.
        amax_history_len: Steps whose maxima a delayed scale looks at.
        amax_compute_algo: Which of these counts: `max` or `most_recent`.
        override_linear_precision: Which products are computed in higher precision: forward, for the gradients of
            inputs, for those of weights.
        use_mxfp8_block_scaling: The same as ``scaling="mxfp8"``.
        scaling: What has a scale of its own: `delayed`, a tensor, from earlier steps; `current`, a tensor; `block`,
            128 values or 128 by 128; `mxfp8`, 32 values (Blackwell).

    Raises:
        ConfigError: If a value is unknown, or two contradict each other.
    """

    library: ClassVar[FP8BackendType] = FP8BackendType.TE

    use_autocast_during_eval: bool | None = None
    margin: int | None = None
    interval: int | None = None
    fp8_format: Literal["HYBRID", "E4M3", "E5M2"] | None = None
    amax_history_len: int | None = None
    amax_compute_algo: Literal["max", "most_recent"] | None = None
    override_linear_precision: tuple[bool, bool, bool] | None = None
    use_mxfp8_block_scaling: bool | None = None
    _: KW_ONLY
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        _fill(
            self,
            "use_autocast_during_eval",
            "margin",
            "interval",
            "fp8_format",
            "amax_history_len",
            "amax_compute_algo",
            "use_mxfp8_block_scaling",
        )
        if self.override_linear_precision is None:
            self.override_linear_precision = (
                read("fp8_override_fprop"),
                read("fp8_override_dgrad"),
                read("fp8_override_wgrad"),
            )
        self.override_linear_precision = _three(self.override_linear_precision)
        _check(self, "fp8_format", FORMATS)
        _check(self, "amax_compute_algo", ALGORITHMS)
        if self.scaling is None:
            self.scaling = "mxfp8" if self.use_mxfp8_block_scaling else "delayed"
        _check(self, "scaling", SCALINGS)
        if self.use_mxfp8_block_scaling and self.scaling != "mxfp8":
            raise ConfigError(
                f"`use_mxfp8_block_scaling` and `scaling={self.scaling!r}` contradict each other. Pass one of them."
            )


@dataclass
class MSAMPRecipeKwargs(KwargsHandler):
    """A name that raises: MS-AMP needs torch 2.1. Use `AORecipeKwargs` or `TERecipeKwargs`.

    Attributes:
        opt_level: The level of MS-AMP.

    Raises:
        ConfigError: Always.
    """

    opt_level: Literal["O1", "O2"] | None = None

    def __post_init__(self) -> None:
        raise ConfigError(WITHOUT_MSAMP)


@dataclass
class FP8RecipeKwargs(TERecipeKwargs, MSAMPRecipeKwargs):
    """Deprecated: use `TERecipeKwargs`, whose settings it takes.

    Attributes:
        backend: `TE`, which is also the default.

    Raises:
        ConfigError: If it is for another library.
    """

    backend: Literal["MSAMP", "TE"] | None = None

    def __post_init__(self) -> None:
        warn_user(
            "`FP8RecipeKwargs` is deprecated: pass `TERecipeKwargs`, or `AORecipeKwargs` to compute with torchao.",
            FutureWarning,
        )
        TERecipeKwargs.__post_init__(self)
        asked: str = read("fp8_backend")
        chosen = str(self.backend or ("TE" if asked == "NO" else asked)).upper()
        if chosen == "MSAMP" or self.opt_level is not None:
            raise ConfigError(WITHOUT_MSAMP)
        if chosen != "TE":
            raise ConfigError(
                f"`backend` of `FP8RecipeKwargs` must be `TE`, got `{chosen}`. For torchao pass `AORecipeKwargs`."
            )
        self.backend = "TE"

    def recipe(self) -> TERecipeKwargs:
        """Return the handler of the library that it is for."""
        return TERecipeKwargs(**{field.name: getattr(self, field.name) for field in fields(TERecipeKwargs)})


Recipe = AORecipeKwargs | TERecipeKwargs

RECIPES: dict[FP8BackendType, type[Recipe]] = {
    FP8BackendType.AO: AORecipeKwargs,
    FP8BackendType.TE: TERecipeKwargs,
}
"""The handler of each library, the first the one that is taken where nobody chooses and several are installed."""

RECIPE_KINDS: tuple[type[KwargsHandler], ...] = (FP8RecipeKwargs, *RECIPES.values())
"""All handlers of 8-bit training; one that is a subclass of another comes before it."""


def _fill(handler: Any, *names: str) -> None:
    """Let fields that nobody gave have what the launcher's settings say."""
    for name in names:
        if getattr(handler, name) is None:
            setattr(handler, name, read(f"fp8_{name.removeprefix('fp8_')}"))


def _check(handler: Any, name: str, known: tuple[str, ...]) -> None:
    """Bring a word into the form of the known ones, and refuse others."""
    value = str(getattr(handler, name))
    found = next((word for word in known if word.lower() == value.lower()), None)
    if found is None:
        raise UnknownNameError.of(f"`{name}`", value, known)
    setattr(handler, name, found)


def _three(values: Any) -> tuple[bool, bool, bool]:
    if isinstance(values, bool):
        return (values,) * 3
    if len(values) != 3 or not all(isinstance(value, bool) for value in values):
        raise ConfigError(f"`override_linear_precision` must be three of True and False, got {values!r}.")
    return tuple(values)
