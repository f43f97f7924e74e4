from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from accel_trackers import AimTracker
from accel_trackers.images import pictures

numpy = pytest.importorskip("numpy")


def test_a_batch_of_tensors_becomes_arrays_of_bytes_with_the_channels_last():
    batch = torch.zeros(2, 3, 4, 5)
    batch[1, 2, 3, 4] = 1.0
    first, second = pictures(batch)
    assert first.shape == second.shape == (4, 5, 3)
    assert first.dtype == numpy.uint8
    assert first.sum() == 0
    assert second[3, 4].tolist() == [0, 0, 255]


def test_one_channel_and_no_channel_are_the_same():
    image = torch.tensor([[0.0, 0.5], [1.0, 2.0]], requires_grad=True)
    (grey,), (same,) = pictures(image), pictures(image[None])
    assert grey.tolist() == same.tolist() == [[0, 128], [255, 255]]


def test_bytes_stay_what_they_are():
    (image,) = pictures(torch.tensor([[[0, 7]]], dtype=torch.uint8))
    assert image.tolist() == [[0, 7]]


def test_lists_are_taken_apart_and_other_things_left_unchanged():
    array, picture = numpy.zeros((4, 5, 3)), object()
    found = pictures([array, picture, "file.png", torch.zeros(2, 1, 1, 1)])
    assert found[0] is array
    assert found[1] is picture
    assert found[2] == "file.png"
    assert len(found) == 5
    assert len(pictures(numpy.zeros((2, 4, 5, 3)))) == 2


def test_aim_takes_an_image_with_its_caption_as_accelerate_does(monkeypatch):
    shown = []

    class Run:
        def track(self, value, **kwargs):
            shown.append((value, kwargs))

    def image(picture, **kwargs):
        return (getattr(picture, "shape", picture), kwargs)

    monkeypatch.setitem(sys.modules, "aim", SimpleNamespace(Image=image, Run=lambda **_: Run()))
    tracker = AimTracker("run")
    array = numpy.zeros((2, 2, 3))
    tracker.log_images(
        {
            "one": (array, "a caption"),
            "two": (array, array),
            "file": ("a.png", "b"),
            "list": ["a.png", "b.png"],
        },
        step=3,
        kwargs={"aim_image": {"quality": 90}},
    )
    shape, options = (2, 2, 3), {"quality": 90}
    assert shown == [
        ((shape, options | {"caption": "a caption"}), {"name": "one", "step": 3}),
        ([(shape, options), (shape, options)], {"name": "two", "step": 3}),
        (("a.png", options | {"caption": "b"}), {"name": "file", "step": 3}),
        ([("a.png", options), ("b.png", options)], {"name": "list", "step": 3}),
    ]
