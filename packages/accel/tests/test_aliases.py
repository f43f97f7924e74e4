import importlib
import subprocess
import sys

import pytest

from accel.aliases import expected_names, owners


@pytest.mark.parametrize("module_name", sorted(expected_names()))
def test_every_alias_is_the_owners_own(module_name):
    module = importlib.import_module(module_name)
    for name in module.__all__:
        assert getattr(module, name) is getattr(importlib.import_module(owners()[name]), name)


@pytest.mark.parametrize("module_name", sorted(expected_names()))
def test_an_alias_module_has_no_other_names(module_name):
    with pytest.raises(AttributeError, match="no attribute `nothing_of_the_kind`"):
        importlib.import_module(module_name).nothing_of_the_kind


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


def test_importing_accel_and_its_aliases_does_not_import_torch():
    code = (
        "import sys, accel, accel.utils, accel.utils.operations, accel.state, accel.tracking; "
        "sys.exit(int('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0
