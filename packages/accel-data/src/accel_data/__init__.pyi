from accel_data.configuration import DataLoaderConfiguration as DataLoaderConfiguration
from accel_data.iterable_shard import IterableDatasetShard as IterableDatasetShard
from accel_data.loaders.dispatcher import DataLoaderDispatcher as DataLoaderDispatcher
from accel_data.loaders.prepared import PreparedLoader as PreparedLoader
from accel_data.loaders.shard import DataLoaderShard as DataLoaderShard
from accel_data.loaders.shard import override_even_batches as override_even_batches
from accel_data.loaders.stateful import (
    is_torchdata_stateful_dataloader_available as is_torchdata_stateful_dataloader_available,
)
from accel_data.loaders.torch_loader import DataLoaderAdapter as DataLoaderAdapter
from accel_data.loaders.torch_loader import DataLoaderStateMixin as DataLoaderStateMixin
from accel_data.loaders.torch_loader import get_sampler as get_sampler
from accel_data.loaders.workers import keep_workers as keep_workers
from accel_data.metrics import gather_for_metrics as gather_for_metrics
from accel_data.prepare import prepare_data_loader as prepare_data_loader
from accel_data.samplers.batch_shard import BatchSamplerShard as BatchSamplerShard
from accel_data.samplers.seedable import SeedableRandomSampler as SeedableRandomSampler
from accel_data.skipping import SkipBatchSampler as SkipBatchSampler
from accel_data.skipping import SkipDataLoader as SkipDataLoader
from accel_data.skipping import skip_first_batches as skip_first_batches

__version__: str
