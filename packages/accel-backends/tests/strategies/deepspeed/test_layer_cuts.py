import sys

import pytest
from torch import nn

from accel_backends.strategies.deepspeed.layer_cuts import cuts_of
from accel_state.errors import CheckpointError


def test_a_release_that_cannot_put_parameters_together_is_named(monkeypatch):
    model = nn.Linear(2, 2)
    assert cuts_of(model) == {}
    model.weight.ds_autotp_universal_checkpoint_meta = {"replicated": False}
    monkeypatch.setitem(sys.modules, "deepspeed.checkpoint.affine", None)
    with pytest.raises(
        CheckpointError, match="`tp_size` need a newer DeepSpeed. Run `pip install 'deepspeed>=0.19.7'`"
    ):
        cuts_of(model)
