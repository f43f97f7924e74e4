"""The stubs behind `accel.utils`, `accel.state` and others: what they name can be imported, and lazily."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import accel

SOURCE = Path(accel.__file__).parent
STUBS = sorted(
    ".".join(("accel", *stub.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for stub in SOURCE.rglob("*.pyi")
)
MODULES = [name.removesuffix("_names") for name in STUBS]


def test_the_stubs_are_those_of_the_public_paths():
    assert len(MODULES) > 40
    assert {"accel.accelerator", "accel.state", "accel.utils", "accel.utils.operations"} <= set(MODULES)


@pytest.mark.parametrize("module_name", MODULES)
def test_every_name_of_a_stub_can_be_imported(module_name):
    module = importlib.import_module(module_name)
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("module_name", MODULES)
def test_a_module_with_a_stub_has_no_other_names(module_name):
    with pytest.raises(
        AttributeError, match=f"module `{module_name}` has no attribute `nothing_of_the_kind`"
    ):
        importlib.import_module(module_name).nothing_of_the_kind


@pytest.mark.parametrize(
    ("module_name", "name"),
    [
        ("accel.big_modeling", "_refuse_recurrent_layers_under_sequence_parallelism"),
        ("accel.commands.launch", "_validate_launch_command"),
        ("accel.utils.launch", "_convert_nargs_to_dict"),
    ],
)
def test_names_with_an_underscore_that_programs_import_are_there_but_not_for_a_star_import(module_name, name):
    module = importlib.import_module(module_name)
    assert callable(getattr(module, name))
    assert name not in module.__all__


def test_a_star_import_of_the_accelerator_module_brings_the_class():
    names = importlib.import_module("accel.accelerator").__all__
    assert {"Accelerator", "PartialState", "gather"} <= set(names)


def test_what_guides_send_readers_to_is_in_the_utils():
    from accel.utils import (  # noqa: F401
        CheckpointError,
        ConfigError,
        PipelineParallelConfig,
        StateError,
        UnaveragedGradientsWarning,
        resolve_plan,
    )


def test_the_tqdm_function_survives_an_import_of_the_module_of_the_same_name():
    from accel.utils import tqdm

    module = importlib.import_module("accel.utils.tqdm")
    assert module.tqdm is tqdm
    assert importlib.import_module("accel.utils").tqdm is tqdm


def test_importing_accel_and_the_modules_with_stubs_does_not_import_torch():
    code = (
        "import sys, accel, accel.utils, accel.utils.operations, accel.state, accel.tracking; "
        "sys.exit(int('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0
