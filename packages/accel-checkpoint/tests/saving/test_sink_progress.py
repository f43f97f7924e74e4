import pytest
import torch

from accel_checkpoint.saving.pending_files import SafetensorsFile, write_file
from accel_checkpoint.saving.sink import Progress

pytest.importorskip("tqdm")


def write(progress, folder):
    with progress:
        write_file(
            SafetensorsFile("a.safetensors", {"x": torch.zeros(5 * 2**18)}, {}), folder, progress=progress
        )


def test_a_long_save_shows_how_much_is_written(tmp_path, capsys):
    progress = Progress("Saving last", quiet_s=0)
    progress.begin_waiting()
    write(progress, tmp_path)
    shown = capsys.readouterr().err
    assert "Saving last" in shown
    assert "5.00M" in shown


def test_a_background_save_shows_progress_once_a_caller_waits(tmp_path, capsys):
    progress = Progress("Saving last", quiet_s=0)
    progress.advance(2**20)
    assert capsys.readouterr().err == ""
    progress.begin_waiting()
    write(progress, tmp_path)
    assert "6.00M" in capsys.readouterr().err  # also what was written before


@pytest.mark.parametrize(("is_shown", "quiet_s"), [(True, 20), (False, 0)])
def test_a_short_save_and_other_ranks_show_nothing(tmp_path, capsys, is_shown, quiet_s):
    progress = Progress("Saving last", is_shown=is_shown, quiet_s=quiet_s)
    progress.begin_waiting()
    write(progress, tmp_path)
    assert capsys.readouterr().err == ""


def test_the_bar_ends_with_all_that_was_written_of_the_total(capsys):
    with Progress("Merging", total=3 * 2**20, quiet_s=0) as progress:
        progress.begin_waiting()
        progress.advance(2**20)
        progress.advance(2**21 + 100)  # headers do not count
    last = capsys.readouterr().err.splitlines()[-1]
    assert "Merging: 100%" in last
    assert "3.00M/3.00M" in last
