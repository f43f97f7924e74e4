"""A model distributed over processes computes what the full model computes."""

import pytest
import torch
from torch import nn

from accel_backends.pipeline.inference import (
    build_pipeline,
    find_pippy_batch_size,
    pippy_forward,
    prepare_pippy,
)
from accel_state import PartialState
from accel_state.errors import ConfigError, DistributedOperationException
from tools.harness.models import Block

pytestmark = pytest.mark.usefixtures("fresh_state")


def sequential():
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))


class Nested(nn.Module):
    """Plain Python around its blocks: options, a second input, a shared weight, several outputs."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"blocks": nn.ModuleList(Block(6, 11) for _ in range(5))})
        self.gate = nn.Parameter(torch.randn(6))
        self.register_buffer("offset", torch.arange(6.0))
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 4, bias=False)
        self.head.weight = nn.Parameter(self.first.weight.T.detach().clone())

    def forward(self, rows, *, weights=None, twice=False):
        weights = torch.ones(len(rows), 1) if weights is None else weights
        hidden = self.first(rows) * self.gate + self.offset
        for number, block in enumerate(self.body["blocks"]):
            hidden = block(hidden) * (weights if number % 2 else 1)
        logits = self.head(hidden * self.gate)
        return {"logits": 2 * logits if twice else logits, "norms": (hidden.norm(dim=1), None)}


def whole_and_spread(make, calls, **options):
    """Return for each call the output of the full model and of the spread one on this rank."""
    torch.manual_seed(3)
    model = make().eval()
    found = []
    with torch.no_grad():
        expected = [model(*args, **kwargs) for args, kwargs in calls]
        model = prepare_pippy(model, **options)
        for (args, kwargs), output in zip(calls, expected, strict=True):
            found.append((output, model(*args, **kwargs)))
    return found, sum(
        each.numel() for each in model.parameters() if each.untyped_storage().nbytes() == each.nbytes
    )


def rows(number, width):
    return torch.linspace(-1, 1, number * width).reshape(number, width)


@pytest.mark.parametrize(("num_processes", "num_chunks"), [(2, None), (3, 4)])
def test_a_sequential_model_computes_the_same_for_batches_of_any_size(world, num_processes, num_chunks):
    calls = [((rows(number, 5),), {}) for number in (4, 7, 1, 2)]
    each = world(num_processes).run(
        whole_and_spread, sequential, calls, example_args=(rows(2, 5),), num_chunks=num_chunks
    )
    for rank, (found, _) in enumerate(each):
        for expected, output in found:
            if rank < num_processes - 1:
                assert output is None
            else:
                torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
                assert output.shape == expected.shape


def test_plain_python_in_the_forward_stays_and_every_process_gets_the_output(world):
    calls = [
        ((rows(5, 4),), {}),
        ((rows(3, 4),), {"weights": rows(3, 1), "twice": True}),
        ((rows(1, 4),), {"twice": True}),
    ]
    each = world(2).run(whole_and_spread, Nested, calls, gather_output=True)
    whole = Nested()
    # The gate is in no layer, and the first layer is listed after the blocks.
    used_twice = whole.gate.numel() + sum(each.numel() for each in whole.first.parameters())
    assert sum(held for _, held in each) == sum(p.numel() for p in whole.parameters()) + used_twice
    for found, _ in each:
        for expected, output in found:
            torch.testing.assert_close(output["logits"], expected["logits"], rtol=0, atol=1e-6)
            torch.testing.assert_close(output["norms"][0], expected["norms"][0], rtol=0, atol=1e-6)
            assert output["norms"][1] is None


def two_cuts(names):
    torch.manual_seed(3)
    model = Nested().eval()
    expected = model(rows(6, 4))["logits"]
    model = prepare_pippy(model, split_points=names, example_args=(rows(2, 4),))
    output = model(rows(6, 4))
    return model.hf_split_points, None if output is None else (output["logits"] - expected).abs().max().item()


def test_modules_named_as_split_points_are_where_stages_begin(world):
    names = ["body.blocks.1", "body.blocks.4"]
    first, second, last = world(3).run(two_cuts, names)
    assert first == second == (names, None)
    assert last == (names, pytest.approx(0, abs=1e-6))


class FailsOnRank(nn.Module):
    """A block that fails for rows of a given value on one rank."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.layer = nn.Linear(3, 3)

    def forward(self, rows):
        if PartialState().process_index == self.rank and type(rows) is torch.Tensor and rows[0, 0] == 9:
            raise ArithmeticError("no nines")
        return self.layer(rows)


def one_that_fails(failing):
    model = nn.Sequential(nn.Linear(3, 3), *(FailsOnRank(rank) for rank in (0, 1, 2)))
    model[0].weight.data, model[0].bias.data = torch.eye(3), torch.zeros(3)
    model = prepare_pippy(model, split_points=["2", "3"], example_args=(torch.ones(3, 3),), num_chunks=3)
    if PartialState().process_index == failing:
        model[failing + 1].layer.weight.data.copy_(torch.eye(3))
    good, bad = torch.ones(3, 3), torch.ones(3, 3)
    bad[1] = 9
    if failing == 0:
        kind = ArithmeticError if PartialState().process_index == 0 else DistributedOperationException
        with pytest.raises(kind, match="no nines"):
            model(bad)
    output = model(good)  # nothing is left over from the call that failed
    return None if output is None else tuple(output.shape)


def test_a_failure_on_one_rank_is_raised_on_all_and_the_next_call_works(world):
    assert world(3).run(one_that_fails, 0) == [None, None, (3, 3)]


def refused(make, match, **options):
    with pytest.raises(ConfigError, match=match):
        prepare_pippy(make(), **options)
    return True


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, rows):
        first = self.layers[0](rows)
        return self.layers[1](first.tanh()) + first


def refused_when_called():
    model = prepare_pippy(Skips(), split_points=["layers.1"])
    kind = ConfigError if PartialState().is_last_process else DistributedOperationException
    with pytest.raises(kind, match="a value for the result of the model, which another stage computes"):
        model(torch.ones(2, 2))
    return True


def refusals():
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    return [
        refused_when_called(),
        refused(lambda: plain, "no module of `Sequential`", split_points=["one"]),
        refused(lambda: plain, "must be `auto` or name 1 modules", split_points=["0", "1"]),
        refused(lambda: nn.Linear(2, 2), "repeats no blocks.*parallel_plan"),
        refused(lambda: plain, "`num_chunks` must be at least 1, got 0", num_chunks=0),
        refused(Skips, "`layers` in `split_points` is no block", split_points=["layers"]),
    ]


def test_what_cannot_be_split_is_refused_with_the_reason(world):
    assert all(map(all, world(2).run(refusals)))


def call_by_hand():
    rows = torch.randn(5, 5, generator=torch.Generator().manual_seed(4))
    torch.manual_seed(3)
    model = sequential().eval()
    with torch.no_grad():
        expected = model(rows)
        forward = build_pipeline(model, ["2"], (rows,), {}, 2)
        return expected, pippy_forward(forward, 3, True, rows), pippy_forward(forward, 1, False, rows)


def test_a_pipeline_built_by_hand_takes_its_options_with_each_call(world):
    first, last = world(2).run(call_by_hand)
    for expected, everywhere, _ in (first, last):
        torch.testing.assert_close(everywhere, expected)
    assert first[2] is None
    torch.testing.assert_close(last[2], last[0])


def test_one_process_has_the_full_model():
    model = sequential().eval()
    expected = model(rows(3, 5))
    assert prepare_pippy(model)(rows(3, 5)).equal(expected)


def test_the_batch_size_is_that_of_the_first_tensor():
    assert find_pippy_batch_size((None, torch.ones(3, 2)), {}) == 3
    assert find_pippy_batch_size((), {"rows": torch.ones(4)}) == 4
    assert find_pippy_batch_size(None, None) is None
