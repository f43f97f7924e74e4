from __future__ import annotations

from torch import nn

from accel_backends.transforms.protocol import Stage, apply_transforms


class Noting:
    """A transform that notes when it is applied."""

    def __init__(self, stage, notes, name):
        self.stage, self.notes, self.name = stage, notes, name

    def apply(self, model, *, evaluation_mode):
        self.notes.append((self.name, evaluation_mode))
        return nn.Sequential(model)


def test_transforms_run_in_the_order_of_their_stages():
    notes = []
    given = [
        Noting(Stage.COMPILE, notes, "compile"),
        Noting(Stage.LOW_PRECISION, notes, "first precision"),
        Noting(Stage.LOW_PRECISION, notes, "second precision"),
        Noting(Stage.TENSOR_PARALLEL, notes, "tensor parallel"),
    ]
    model = nn.Identity()
    result = apply_transforms(model, given, evaluation_mode=True)
    names = ["tensor parallel", "first precision", "second precision", "compile"]
    assert notes == [(name, True) for name in names]
    assert result[0][0][0][0] is model


def test_the_order_of_the_house_holds():
    order = ["TENSOR_PARALLEL", "LOW_PRECISION", "CONTEXT_PARALLEL", "ACTIVATION_CHECKPOINTING", "COMPILE"]
    assert [stage.name for stage in sorted(Stage)] == order
