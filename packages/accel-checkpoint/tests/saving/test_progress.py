import threading
import time
from functools import partial

import pytest

from accel_checkpoint.saving.progress import showing_progress, size_of_folder

pytest.importorskip("tqdm")


def grow(folder, capsys, *, is_shown, quiet_s, wait_for="", awaited=None):
    written = partial(size_of_folder, folder)
    with showing_progress(written, label="Saving last", is_shown=is_shown, quiet_s=quiet_s, awaited=awaited):
        (folder / "model.safetensors").write_bytes(bytes(5 * 2**20))
        end = time.monotonic() + 20
        told = ""
        while wait_for and wait_for not in told and time.monotonic() < end:
            time.sleep(0.01)
            told += capsys.readouterr().err
    return told + capsys.readouterr().err


def test_a_long_save_shows_how_much_is_written(tmp_path, capsys):
    assert "Saving last" in grow(tmp_path, capsys, is_shown=True, quiet_s=0, wait_for="5.00M")


def test_a_background_save_shows_progress_once_a_caller_waits(tmp_path, capsys):
    awaited = threading.Event()
    assert grow(tmp_path, capsys, is_shown=True, quiet_s=0, awaited=awaited) == ""
    awaited.set()
    told = grow(tmp_path, capsys, is_shown=True, quiet_s=0, wait_for="5.00M", awaited=awaited)
    assert "Saving last" in told


@pytest.mark.parametrize(("is_shown", "quiet_s"), [(True, 20), (False, 0)])
def test_a_short_save_and_other_ranks_show_nothing(tmp_path, capsys, is_shown, quiet_s):
    assert grow(tmp_path, capsys, is_shown=is_shown, quiet_s=quiet_s) == ""


def test_a_folder_that_is_renamed_meanwhile_is_no_error(tmp_path, capsys):
    folder = tmp_path / "hidden"
    folder.mkdir()
    with showing_progress(partial(size_of_folder, folder), label="Saving last", is_shown=True, quiet_s=0):
        folder.rename(tmp_path / "final")


def test_the_bar_ends_with_all_that_was_written_of_the_total(capsys):
    written = []
    with showing_progress(lambda: sum(written), label="Merging", is_shown=True, total=3 * 2**20, quiet_s=0):
        written += [2**20, 2**21]
    last = capsys.readouterr().err.splitlines()[-1]
    assert "Merging: 100%" in last
    assert "3.00M/3.00M" in last
