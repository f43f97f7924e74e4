"""Files of an attacker: a reader gets plain values or an error that names the file, and nothing else."""

import collections
import os
import re
import tracemalloc

import numpy as np
import pytest
import torch
from hostile_pickles import CANARY, HOSTILE
from mutated_files import MOST_MIB, SAMPLE, peak_mib, read_mutated

from accel.utils import load
from accel_bigmodel import load_state_dict
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_state.errors import CheckpointError

REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))
PLAIN = {
    "an empty array of a shape": np.empty(0),
    "a Counter": {1: 2**62},
    "a Size": (2**62, 2**62),
    "a list in itself": [],
    "a dict in itself": {},
    "doubled lists": [],
}
"""What loads, with a value of its type: it takes no more memory than the file."""
CLASSES = (np.ndarray, np.dtype, torch.Tensor, torch.Size, collections.OrderedDict, type(np.dtype("i8")))


@pytest.mark.parametrize("read", [read_torch_file, load, load_state_dict])
@pytest.mark.parametrize("attack", HOSTILE)
def test_an_attack_by_a_file_is_refused(tmp_path, read, attack):
    path = tmp_path / "file.bin"
    HOSTILE[attack](path)
    before = [dict(vars(kind)) for kind in CLASSES], np.dtype("i8").str
    tracemalloc.start()
    if isinstance(PLAIN.get(attack), dict if read is load_state_dict else object) and attack in PLAIN:
        assert isinstance(read(path), type(PLAIN[attack]))
    else:
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24 + 30 * path.stat().st_size
    assert not CANARY.exists()
    assert before == ([dict(vars(kind)) for kind in CLASSES], np.dtype("i8").str)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_changed_files_are_read_or_refused(tmp_path, name):
    before_mib = peak_mib()
    outcomes = read_mutated(name, SAMPLE[name] * REPEATS, folder=tmp_path)
    assert min(outcomes["read"], outcomes["refused"]) > 0  # the changes are neither too small nor too large
    assert peak_mib() - before_mib < MOST_MIB
