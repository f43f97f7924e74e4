from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from accel_bigmodel import find_tied_parameters, init_empty_weights, init_on_device

CPU, META = torch.device("cpu"), torch.device("meta")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        frequencies = 1.0 / 10 ** (torch.arange(0, 4, 2).float() / 4)
        self.num_rates = len([rate.item() for rate in torch.linspace(0, 1, 3)])
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("mask", torch.ones(3, 3).tril())
        self.register_buffer("nothing", None)
        self.register_parameter("no_bias", None)
        self.table = torch.zeros(2, 2)


def devices(model: nn.Module) -> dict[str, str]:
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: tensor.device.type for name, tensor in tensors}


def test_parameters_are_empty_and_buffers_are_real():
    with init_empty_weights():
        model = Model()
    assert devices(model) == {
        **dict.fromkeys(["embed.weight", "norm.weight", "norm.bias", "head.weight"], "meta"),
        **dict.fromkeys(["frequencies", "mask", "norm.running_mean", "norm.running_var"], "cpu"),
        "norm.num_batches_tracked": "cpu",
    }
    assert model.mask.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert model.table.device == CPU


def test_include_buffers_empties_them_and_what_is_made_of_a_size():
    with init_empty_weights(include_buffers=True):
        model = Model()
    assert set(devices(model).values()) == {"meta"}
    assert model.table.device == META
    assert model.num_rates == 3


def test_values_that_init_reads_stay_readable():
    with init_empty_weights(include_buffers=True):
        assert torch.linspace(0, 1, 2).tolist() == [0, 1]
        assert torch.tensor([1]).item() == 1
        assert torch.zeros(2, device="cpu").tolist() == [0, 0]


@pytest.mark.parametrize(("value", "device"), [("true", "meta"), ("false", "cpu"), (None, "cpu")])
def test_the_setting_decides_where_the_argument_does_not(monkeypatch, value, device):
    monkeypatch.delenv("ACCELERATE_INIT_INCLUDE_BUFFERS", raising=False)
    if value is not None:
        monkeypatch.setenv("ACCELERATE_INIT_INCLUDE_BUFFERS", value)
    with init_empty_weights():
        assert nn.BatchNorm1d(2).running_mean.device.type == device
    with init_empty_weights(include_buffers=False):
        assert nn.BatchNorm1d(2).running_mean.device.type == "cpu"


def test_the_shape_of_a_model_larger_than_memory_costs_nothing():
    with init_empty_weights():
        model = nn.Sequential(*[nn.Linear(10_000, 10_000) for _ in range(1000)])
    assert sum(parameter.numel() for parameter in model.parameters()) == 1000 * (10_000**2 + 10_000)


def test_tied_parameters_stay_tied_however_they_were_tied():
    class FromOutside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Parameter(torch.ones(4, 4))
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.a.weight = shared
            self.b.weight = shared
            self.c = nn.Linear(4, 4)
            self.c.weight = self.a.weight

    with init_empty_weights():
        model = FromOutside()
    assert find_tied_parameters(model) == [["a.weight", "b.weight", "c.weight"]]
    assert model.a.weight.is_meta


def test_what_a_parameter_is_survives_the_move():
    class Special(nn.Parameter):
        pass

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            special = Special(torch.ones(2), requires_grad=False)
            special.scale = 3
            self.special = special
            self.short = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    with init_empty_weights():
        holder = Holder()
    assert type(holder.special) is Special
    assert (holder.special.requires_grad, holder.special.scale) == (False, 3)
    assert (holder.short.dtype, holder.short.requires_grad, type(holder.short)) == (
        torch.bfloat16,
        True,
        nn.Parameter,
    )


def test_lazy_modules_stay_lazy():
    with init_empty_weights():
        lazy = nn.LazyLinear(3)
    assert isinstance(lazy.weight, nn.UninitializedParameter)
    assert lazy.weight.device == META


def test_the_innermost_of_nested_contexts_counts():
    with init_empty_weights(include_buffers=True):
        outer = nn.BatchNorm1d(2)
        with init_on_device("cpu", include_buffers=True):
            inner = nn.BatchNorm1d(2)
            with init_empty_weights(include_buffers=False):
                innermost = nn.BatchNorm1d(2)
        again = nn.BatchNorm1d(2)
    assert set(devices(outer).values()) == set(devices(again).values()) == {"meta"}
    assert set(devices(inner).values()) == {"cpu"}
    assert inner.weight.tolist() == [1, 1]
    assert (innermost.weight.device, innermost.running_mean.device) == (META, CPU)


def test_afterwards_and_after_an_error_modules_are_built_as_usual():
    with pytest.raises(RuntimeError, match="on purpose"), init_empty_weights(include_buffers=True):
        raise RuntimeError("on purpose")
    assert set(devices(nn.BatchNorm1d(2)).values()) == {"cpu"}
    assert torch.zeros(1).device == CPU


def test_other_threads_build_real_models_meanwhile():
    inside, done, found = threading.Event(), threading.Event(), {}

    def build() -> None:
        assert inside.wait(30)
        found["other"] = devices(nn.BatchNorm1d(2))
        done.set()

    thread = threading.Thread(target=build)
    thread.start()
    with init_empty_weights(include_buffers=True):
        inside.set()
        assert done.wait(30)
        mine = devices(nn.BatchNorm1d(2))
    thread.join(30)
    assert set(found["other"].values()) == {"cpu"}
    assert set(mine.values()) == {"meta"}


def test_init_on_device_moves_parameters_and_keeps_their_values():
    with init_on_device(torch.device("cpu")):
        model = nn.LayerNorm(3)
    assert model.weight.tolist() == [1, 1, 1]


def test_memory_of_a_parameter_is_free_as_soon_as_it_has_moved():
    import weakref

    with init_empty_weights():
        real = nn.Parameter(torch.ones(1000))
        module = nn.Module()
        module.weight = real
        gone = weakref.ref(real)
        del real
        assert gone() is None
        assert module.weight.is_meta
