"""Trackio: Hugging Face's local dashboard, with the interface of wandb."""

from __future__ import annotations

from typing import Any

from accel_trackers.images import by_place
from accel_trackers.service import GroupedTracker, WithHistograms, WithTables
from accel_trackers.values import as_array, flat, table_rows, with_numbers


class TrackioTracker(GroupedTracker, WithHistograms, WithTables):
    """Logs to a trackio run: values of any type that it accepts, one-element tensors on any device, and dicts of these.

    ``trackio show`` displays it. Keyword arguments of `log` are for ``trackio.Run.log``, those of `log_images` for
    ``trackio.Image``, those of `log_histograms` for ``trackio.Histogram``. Tables need pandas.

    Args:
        run_name: Name of the project; trackio names the run, unless ``name`` is given.
        main_process_only: If False, each rank has a run, named after the rank and the ``group``, required then.
        kwargs: Keyword arguments for ``trackio.init``, such as ``space_id``, ``group``, ``resume``.

    Raises:
        ConfigError: If ``main_process_only`` is False and no ``group`` is given.
    """

    name = "trackio"

    def _open(self) -> Any:
        import trackio

        kwargs = dict(self._kwargs)
        if not self.main_process_only:
            from accel_state import PartialState

            # Runs of one name are one run, and trackio counts the runs so far to name the next.
            kwargs["name"] = f"{kwargs.get('name') or kwargs['group']}-rank{PartialState().process_index}"
        return trackio.init(project=self.run_name, **kwargs)

    def _close(self, run: Any) -> None:
        run.finish()

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        # Not `trackio.log`, which only finds the run in the thread that called `trackio.init`.
        run.log(flat(with_numbers(values)), step=step, **kwargs)

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        import trackio

        run.log({name: trackio.Image(image, **kwargs) for name, image in by_place(values).items()}, step=step)

    def _log_histograms(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        import trackio

        shown = {name: trackio.Histogram(as_array(numbers), **kwargs) for name, numbers in values.items()}
        run.log(shown, step=step)

    def _log_table(self, run: Any, name: str, table: tuple[Any, Any, Any], step: int | None) -> None:  # type: ignore[override]  # its tables take no more
        import trackio

        columns, data, dataframe = table
        rows = table_rows(data, dataframe)
        given = {"columns": columns, "data": rows} if dataframe is None else {"dataframe": rows}
        run.log({name: trackio.Table(**given)}, step=step)
