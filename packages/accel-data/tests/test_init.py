from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import accel_data

SIGNATURES = {
    "BatchSamplerShard": "batch_sampler num_processes=1 process_index=0 split_batches=False even_batches=True",
    "DataLoaderAdapter": "dataset use_stateful_dataloader=False batch_sampler=None **kwargs",
    "DataLoaderConfiguration": "split_batches=False dispatch_batches=None even_batches=True use_seedable_sampler=False"
    " data_seed=None non_blocking=False use_stateful_dataloader=False",
    "DataLoaderDispatcher": "dataset split_batches=False skip_batches=0 use_stateful_dataloader=False _drop_last=False"
    " _non_blocking=False slice_fn=None torch_device_mesh=None iteration=0 **kwargs",
    "DataLoaderShard": "dataset device=None rng_types=None synchronized_generator=None skip_batches=0"
    " use_stateful_dataloader=False _drop_last=False _non_blocking=False torch_device_mesh=None iteration=0 **kwargs",
    "IterableDatasetShard": "dataset batch_size=1 drop_last=False num_processes=1 process_index=0 split_batches=False"
    " even_batches=True",
    "SeedableRandomSampler": "*args data_seed=None **kwargs",
    "SkipBatchSampler": "batch_sampler skip_batches=0",
    "SkipDataLoader": "dataset skip_batches=0 use_stateful_dataloader=False **kwargs",
    "get_sampler": "dataloader",
    "prepare_data_loader": "dataloader device=None num_processes=None process_index=None split_batches=False"
    " put_on_device=False rng_types=None dispatch_batches=None even_batches=True slice_fn_for_dispatch=None"
    " use_seedable_sampler=False data_seed=None non_blocking=False use_stateful_dataloader=False"
    " torch_device_mesh=None keeps_dataset_state=True",
    "skip_first_batches": "dataloader num_batches=0",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_names_and_defaults_that_users_know(name: str) -> None:
    thing = getattr(accel_data, name)
    parameters = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing).parameters.values()
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    spelled = [
        marks.get(one.kind, "") + one.name + ("" if one.default is one.empty else f"={one.default!r}")
        for one in parameters
        if one.name != "self"
    ]
    assert " ".join(spelled) == SIGNATURES[name]


def test_all_names_are_sorted_and_there() -> None:
    assert accel_data.__all__ == sorted(accel_data.__all__)
    assert all(getattr(accel_data, name) is not None for name in accel_data.__all__)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, accel_data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=180, check=False).returncode == 0
