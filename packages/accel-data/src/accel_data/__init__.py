"""Which rank reads which sample: exact, resumable data loaders for distributed PyTorch."""

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_data.configuration import DataLoaderConfiguration as DataLoaderConfiguration
    from accel_data.even_batches import override_even_batches as override_even_batches
    from accel_data.iterable_shard import IterableDatasetShard as IterableDatasetShard
    from accel_data.loader_workers import keep_workers as keep_workers
    from accel_data.loaders.adapter import DataLoaderAdapter as DataLoaderAdapter
    from accel_data.loaders.dispatcher import DataLoaderDispatcher as DataLoaderDispatcher
    from accel_data.loaders.epochs import get_sampler as get_sampler
    from accel_data.loaders.prepared import PreparedLoader as PreparedLoader
    from accel_data.loaders.shard import DataLoaderShard as DataLoaderShard
    from accel_data.loaders.skip import SkipDataLoader as SkipDataLoader
    from accel_data.loaders.state_mixin import DataLoaderStateMixin as DataLoaderStateMixin
    from accel_data.metrics import gather_for_metrics as gather_for_metrics
    from accel_data.prepare import prepare_data_loader as prepare_data_loader
    from accel_data.samplers.batch_shard import BatchSamplerShard as BatchSamplerShard
    from accel_data.samplers.seedable import SeedableRandomSampler as SeedableRandomSampler
    from accel_data.samplers.skip import SkipBatchSampler as SkipBatchSampler
    from accel_data.skipping import skip_first_batches as skip_first_batches
    from accel_data.stateful import (
        is_torchdata_stateful_dataloader_available as is_torchdata_stateful_dataloader_available,
    )

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BatchSamplerShard": "accel_data.samplers.batch_shard",
        "DataLoaderAdapter": "accel_data.loaders.adapter",
        "DataLoaderConfiguration": "accel_data.configuration",
        "DataLoaderDispatcher": "accel_data.loaders.dispatcher",
        "DataLoaderShard": "accel_data.loaders.shard",
        "DataLoaderStateMixin": "accel_data.loaders.state_mixin",
        "IterableDatasetShard": "accel_data.iterable_shard",
        "PreparedLoader": "accel_data.loaders.prepared",
        "SeedableRandomSampler": "accel_data.samplers.seedable",
        "SkipBatchSampler": "accel_data.samplers.skip",
        "SkipDataLoader": "accel_data.loaders.skip",
        "gather_for_metrics": "accel_data.metrics",
        "get_sampler": "accel_data.loaders.epochs",
        "is_torchdata_stateful_dataloader_available": "accel_data.stateful",
        "keep_workers": "accel_data.loader_workers",
        "override_even_batches": "accel_data.even_batches",
        "prepare_data_loader": "accel_data.prepare",
        "skip_first_batches": "accel_data.skipping",
    },
)
