import pytest
import torch

from accel_checkpoint.progress import progress_bar
from accel_checkpoint.saving.pending_files import SafetensorsFile, write_file

pytest.importorskip("tqdm")


def write(folder, **options):
    file = SafetensorsFile("a.safetensors", {"x": torch.zeros(5 * 2**18)})
    with progress_bar("Saving last", **options) as advance:
        write_file(file, folder, advance=advance)


def test_a_long_save_shows_how_much_is_written(tmp_path, capsys):
    write(tmp_path, quiet_s=0)
    shown = capsys.readouterr().err
    assert "Saving last" in shown
    assert "5.00M" in shown


@pytest.mark.parametrize(("is_shown", "quiet_s"), [(True, 20), (False, 0)])
def test_a_short_save_and_other_ranks_show_nothing(tmp_path, capsys, is_shown, quiet_s):
    write(tmp_path, is_shown=is_shown, quiet_s=quiet_s)
    assert capsys.readouterr().err == ""


def test_the_bar_ends_with_all_that_was_written_of_the_total(capsys):
    with progress_bar("Merging", total=3 * 2**20, quiet_s=0) as advance:
        advance(2**20)
        advance(2**21 + 100)  # headers do not count
    last = capsys.readouterr().err.splitlines()[-1]
    assert "Merging: 100%" in last
    assert "3.00M/3.00M" in last
