"""Trackio: Hugging Face's local dashboard, with the interface of wandb."""

from __future__ import annotations

from typing import Any

from accel_trackers.abilities import LogsHistograms, LogsTables
from accel_trackers.images import by_place
from accel_trackers.service import GroupedTracker
from accel_trackers.values import as_array, flat, is_data_frame, with_numbers


class TrackioTracker(GroupedTracker, LogsHistograms, LogsTables):
    """Logs to a trackio run: values of any type that it accepts, one-element tensors on any device, and dicts of these.

    ``trackio show`` displays it. Keyword arguments of `log` are for ``trackio.Run.log``, those of `log_images` for
    ``trackio.Image``, those of `log_histograms` for ``trackio.Histogram``. Tables need pandas.

    Args:
        run_name: Name of the project; trackio names the run, unless ``name`` is given.
        main_process_only: If False, each rank has a run, named after the rank and the ``group``, required then.
        kwargs: Keyword arguments for ``trackio.init``, such as ``space_id``, ``group``, ``resume``.
    """

    name = "trackio"

    def _open(self) -> Any:
        import trackio

        self._library = trackio
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
        shown = {name: self._library.Image(image, **kwargs) for name, image in by_place(values).items()}
        run.log(shown, step=step)

    def _log_histograms(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        shown = {name: self._library.Histogram(as_array(each), **kwargs) for name, each in values.items()}
        run.log(shown, step=step)

    def _log_table(self, run: Any, name: str, columns: list[str] | None, rows: Any, step: int | None) -> None:
        given = {"dataframe": rows} if is_data_frame(rows) else {"columns": columns, "data": rows}
        run.log({name: self._library.Table(**given)}, step=step)
