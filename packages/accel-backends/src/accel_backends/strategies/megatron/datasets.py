"""Megatron's own data sets of tokens, for training, validation and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from accel_backends.strategies.megatron.packages import core
from accel_state.errors import ConfigError


class MegatronLMDummyDataLoader:
    """Says which of Megatron's data sets are read. `prepare` returns the loaders of three splits, in turn.

    Pass it three times: the first stands for the training set, the second for validation, the third for test.

    Args:
        **dataset_kwargs: ``data_path`` (a prefix, or weights and prefixes in turn), ``splits_string`` (such as
            ``"949,50,1"``), ``seq_length``, ``micro_batch_size``, ``tokenizer`` (anything with ``eod`` or
            ``eos_token_id``), ``seed``, and any field of `megatron.core.datasets.gpt_dataset.GPTDatasetConfig`.
    """

    def __init__(self, **dataset_kwargs: Any) -> None:
        self.dataset_args = dataset_kwargs

    @property
    def batch_size(self) -> int | None:
        """Rows of a micro-batch."""
        return self.dataset_args.get("micro_batch_size")

    def set_megatron_data_args(self) -> dict[str, Any]:
        """Return the arguments of the `GPTDatasetConfig`.

        Raises:
            ConfigError: If one that is needed is missing.
        """
        given = dict(self.dataset_args)
        missing = [
            name for name in ("data_path", "seq_length", "micro_batch_size", "tokenizer") if name not in given
        ]
        if missing:
            raise ConfigError(
                f"A `MegatronLMDummyDataLoader` needs {', '.join(f'`{name}`' for name in missing)}. Pass them."
            )
        paths = given.pop("data_path")
        paths = paths.split() if isinstance(paths, str) else [str(one) for one in paths]
        given.pop("micro_batch_size")
        return {
            "random_seed": given.pop("seed", 1234),
            "sequence_length": given.pop("seq_length"),
            "blend": core("datasets.utils").get_blend_from_list(paths),
            "split": given.pop("splits_string", "969,30,1"),
            "tokenizer": _Tokenizer(given.pop("tokenizer")),
            "reset_position_ids": given.pop("reset_position_ids", False),
            "reset_attention_mask": given.pop("reset_attention_mask", False),
            "eod_mask_loss": given.pop("eod_mask_loss", False),
            "create_attention_mask": False,
            **given,
        }

    def get_train_valid_test_datasets_provider(self, accelerator: Any) -> Callable[[list[int]], Any]:
        """Return a function from three numbers of samples to three data sets. All ranks call it together."""
        plugin = accelerator.state.megatron_lm_plugin
        if plugin.custom_megatron_datasets_provider_function is not None:
            custom: Callable[[list[int]], Any] = plugin.custom_megatron_datasets_provider_function
            return custom
        arguments = self.set_megatron_data_args()
        arguments["eod_mask_loss"] = arguments["eod_mask_loss"] or bool(plugin.eod_mask_loss)

        def provide(numbers: list[int]) -> Any:
            module = core("datasets.gpt_dataset")
            builder = core("datasets.blended_megatron_dataset_builder").BlendedMegatronDatasetBuilder
            is_builder = lambda: accelerator.is_local_main_process  # noqa: E731
            return builder(
                module.GPTDataset, numbers, is_builder, module.GPTDatasetConfig(**arguments)
            ).build()

        return provide

    def build_train_valid_test_data_iterators(
        self, accelerator: Any, make_loader: Callable[[DataLoader[Any]], Any] = iter
    ) -> tuple[Any, Any, Any]:
        """Return endless iterators over the batches of the three splits, None for a split without samples.

        Args:
            accelerator: What an `Accelerator` shows of the run.
            make_loader: Prepares a loader, so that each data rank reads its own rows.

        Raises:
            ConfigError: If nobody says how long the run is.
        """
        plugin = accelerator.state.megatron_lm_plugin
        rows = self.dataset_args["micro_batch_size"] * plugin.num_micro_batches
        in_step = rows * plugin.num_data_ranks
        num_train = plugin.train_samples or (plugin.train_iters or 0) * in_step
        if not num_train:
            raise ConfigError(
                "Megatron's data sets need the length of the run. Set `train_iters` or `train_samples` of the "
                "MegatronLMPlugin."
            )
        num_evaluations = num_train // in_step // plugin.eval_interval + 1
        numbers = [num_train, num_evaluations * plugin.eval_iters * in_step, plugin.eval_iters * in_step]
        sets = self.get_train_valid_test_datasets_provider(accelerator)(numbers)
        train, valid, test = (
            None if one is None else _endless(make_loader(DataLoader(_After(one, start), batch_size=rows)))
            for one, start in zip(sets, plugin.consumed_samples, strict=True)
        )
        return train, valid, test


class _After(Dataset[Any]):
    """The samples behind those that a run before has read."""

    def __init__(self, dataset: Any, start: int) -> None:
        self._dataset, self._start = dataset, start

    def __len__(self) -> int:
        return len(self._dataset) - self._start

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._start + index]


class _Tokenizer:
    """A tokenizer with what Megatron's data sets ask of one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eod = getattr(tokenizer, "eod", None)
        if self.eod is None:
            self.eod = tokenizer.eos_token_id
        self.unique_identifiers = {"class": type(tokenizer).__name__, "eod": str(self.eod)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_tokenizer"], name)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
