"""Which optional packages are available: one table, one check for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from accel_state.availability.package import Package, why_package_not
from accel_state.environment import read

PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        "4bit_bnb": Package("bitsandbytes", ("bitsandbytes",), "0.39.0"),
        "8bit_bnb": Package("bitsandbytes", ("bitsandbytes",), "0.37.2"),
        "aim": Package("aim", ("aim",)),
        "amdsmi": Package("amdsmi", ("amdsmi",)),
        "bitsandbytes_multi_backend": Package("bitsandbytes", ("bitsandbytes",), "0.46.0"),
        "bnb": Package("bitsandbytes", ("bitsandbytes",)),
        "boto3": Package("boto3", ("boto3",)),
        "clearml": Package("clearml", ("clearml",)),
        "comet_ml": Package("comet_ml", ("comet-ml",)),
        "datasets": Package("datasets", ("datasets",)),
        "deepspeed": Package("deepspeed", ("deepspeed", "deepspeed-mlu")),
        "dvclive": Package("dvclive", ("dvclive",)),
        "import_timer": Package("import_timer", ("import-timer",)),
        "lomo": Package("lomo_optim", ("lomo-optim",)),
        "matplotlib": Package("matplotlib", ("matplotlib",)),
        "megatron_lm": Package("megatron", ("megatron-core", "megatron-lm")),
        "mlflow": Package("mlflow", ("mlflow", "mlflow-skinny")),
        "msamp": Package("msamp", ("ms-amp",)),
        "numpy": Package("numpy", ("numpy",), "1.25.0"),
        "pandas": Package("pandas", ("pandas",)),
        "peft": Package("peft", ("peft",)),
        "pynvml": Package("pynvml", ("nvidia-ml-py", "pynvml")),
        "pytest": Package("pytest", ("pytest",)),
        "rich": Package("rich", ("rich",)),
        "sagemaker": Package("sagemaker", ("sagemaker",)),
        "schedulefree": Package("schedulefree", ("schedulefree",)),
        "swanlab": Package("swanlab", ("swanlab",)),
        "timm": Package("timm", ("timm",)),
        "torchao": Package("torchao", ("torchao",), "0.6.1"),
        "torchdata": Package("torchdata", ("torchdata",)),
        "torchdata_stateful_dataloader": Package("torchdata", ("torchdata",), "0.8.0"),
        "torchvision": Package("torchvision", ("torchvision",)),
        "tqdm": Package("tqdm", ("tqdm",)),
        "trackio": Package("trackio", ("trackio",)),
        "transformer_engine": Package(
            "transformer_engine", ("transformer-engine", "transformer_engine_torch")
        ),
        "transformers": Package("transformers", ("transformers",)),
        "triton": Package("triton", ("triton", "pytorch-triton", "triton-windows")),
        "wandb": Package("wandb", ("wandb",)),
    }
)
_TENSORBOARD = (
    Package("tensorboard", ("tensorboard",), install="tensorboard PyYAML"),
    Package("tensorboardX", ("tensorboardX",)),
)
# `torch.distributed.pipelining` came into torch itself with this version.
_PIPPY = Package("torch", ("torch",), "2.4.0")
# `torch.load(weights_only=True)` can be told of safe classes since this version.
_WEIGHTS_ONLY = Package("torch", ("torch",), "2.4.0")


def __getattr__(name: str) -> Callable[[], bool]:
    """Make ``is_<name>_available`` for each row of the table."""
    short = name.removeprefix("is_").removesuffix("_available")
    if name != f"is_{short}_available" or short not in PACKAGES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`", name=name)
    check = globals()[name] = _check(short)
    return check


def _check(name: str) -> Callable[[], bool]:
    package = PACKAGES[name]

    def is_available() -> bool:
        return why_package_not(package) is None

    at_least = f", version {package.minimum} or newer" if package.minimum else ""
    is_available.__name__ = is_available.__qualname__ = f"is_{name}_available"
    is_available.__doc__ = f"Whether `{package.distributions[0]}` is installed{at_least}; not imported."
    return is_available


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, at least ``min_version`` if given; not imported."""
    return why_package_not(PACKAGES["bnb"], minimum=min_version) is None


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Whether numpy is installed, at least ``min_version``; not imported."""
    return why_package_not(PACKAGES["numpy"], minimum=min_version) is None


def is_fp8_available() -> bool:
    """Whether a library for 8-bit training is installed: Transformer Engine or torchao."""
    return _why_not_fp8() is None


def is_pippy_available() -> bool:
    """Whether torch has pipeline parallelism built in."""
    return why_package_not(_PIPPY) is None


def is_rich_available() -> bool:
    """Whether `rich` is installed and ``ACCELERATE_ENABLE_RICH`` asks for it."""
    return _why_not_rich() is None


def is_tensorboard_available() -> bool:
    """Whether TensorBoard's writer is installed, by `tensorboard` or `tensorboardX`; not imported."""
    return _why_not_tensorboard() is None


def is_weights_only_available() -> bool:
    """Whether torch can be told which classes are safe to unpickle."""
    return why_package_not(_WEIGHTS_ONLY) is None


def _why_not_fp8() -> str | None:
    if any(why_package_not(PACKAGES[name]) is None for name in ("transformer_engine", "torchao")):
        return None
    return "No library for 8-bit training is installed. Run `pip install torchao`, or install Transformer Engine."


def _why_not_rich() -> str | None:
    reason = why_package_not(PACKAGES["rich"])
    if reason is None and not read("enable_rich"):
        return "`rich` is installed but not asked for. Set `ACCELERATE_ENABLE_RICH=true`."
    return reason


def _why_not_tensorboard() -> str | None:
    reasons = [why_package_not(package) for package in _TENSORBOARD]
    return None if None in reasons else reasons[0]


WHY_NOT: Mapping[str, Callable[[], str | None]] = MappingProxyType(
    {
        **{name: partial(why_package_not, package) for name, package in PACKAGES.items()},
        "fp8": _why_not_fp8,
        "pippy": partial(why_package_not, _PIPPY),
        "rich": _why_not_rich,
        "tensorboard": _why_not_tensorboard,
        "weights_only": partial(why_package_not, _WEIGHTS_ONLY),
    }
)
