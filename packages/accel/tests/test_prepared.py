import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from accel import Accelerator, DataLoaderConfiguration
from accel.utils import extract_model_from_parallel
from accel_backends import AcceleratedOptimizer, AcceleratedScheduler
from accel_data import prepare_data_loader
from accel_state.environment import patch_environment
from accel_state.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_a_scheduler_waits_for_the_optimizers_step():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    rates = []
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        rates.append(scheduler.get_last_lr()[0])
    assert rates == [1.0, 0.5, 0.5, 0.25]


def uneven(even_batches):
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, bias=False)
    model, loader = accelerator.prepare(model, DataLoader(torch.ones(3, 1), batch_size=1))
    counted = 0
    with accelerator.join_uneven_inputs([model], even_batches=even_batches):
        for batch in loader:
            accelerator.backward(model(batch).sum())
            counted += 1
    return counted, loader.batch_sampler.even_batches


@pytest.mark.parametrize(("even_batches", "counts"), [(None, [2, 2]), (False, [2, 1])])
def test_ranks_may_run_out_of_data_at_different_times(world, even_batches, counts):
    results = world(2).run(uneven, even_batches)
    assert [count for count, _ in results] == counts
    assert all(after is True for _, after in results)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(3, 1))


def uneven_stream(*, dispatch):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    model, loader = accelerator.prepare(nn.Linear(1, 1, bias=False), DataLoader(Stream(), batch_size=1))
    counted = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            accelerator.backward(model(batch).sum())
            counted += 1
    return counted


def test_a_stream_may_be_distributed_unevenly_too(world):
    assert world(2).run(uneven_stream, dispatch=False) == [2, 1]


def warnings_of(function, *arguments, **options):
    """Return what a call gave back, and the file and the text of each warning."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function(*arguments, **options)
    return result, [(warning.filename, str(warning.message)) for warning in found]


def test_a_loader_that_rank_0_reads_for_all_reports_that_it_stays_even(world):
    (steps, [(file, text)]), other = world(2).run(warnings_of, uneven_stream, dispatch=True)
    assert text.startswith("`even_batches=False` has no effect on a prepared DataLoaderDisp")
    assert file == __file__
    assert steps == 2
    assert other == (2, [])


def prepare_nothing(*, by_accelerator):
    loader = DataLoader(range(3), batch_size=2, drop_last=True)
    prepare = Accelerator(cpu=True).prepare if by_accelerator else prepare_data_loader
    return len(prepare(loader))


@pytest.mark.parametrize("by_accelerator", [False, True])
def test_a_loader_without_a_batch_is_reported_once_from_a_run_at_the_users_line(world, by_accelerator):
    (_, [(file, text)]), other = world(2).run(warnings_of, prepare_nothing, by_accelerator=by_accelerator)
    assert text.startswith("A loader has no batch: with `drop_last=True`, a step needs 4 samples")
    assert file == __file__
    assert other == (0, [])


def accumulate_unevenly(num_samples, *, num_steps, stream=False):
    """Train on samples 1, 2, …, one a batch; return the weight after each step of the optimizer."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=num_steps,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
    )
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    data = Stream() if stream else (torch.arange(num_samples, dtype=torch.float64) + 1).view(-1, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1.0), DataLoader(data, batch_size=1)
    )
    weights, counted = [], 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            counted += 1
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.double()).sum())
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    weights.append(accelerator.unwrap_model(model).weight.item())
    return weights, counted


@pytest.mark.parametrize("num_samples", range(1, 12))
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_ranks_that_end_at_different_batches_accumulate_and_step_together(world, num_samples, num_steps):
    (first, num_first), (second, num_second) = world(2).run(
        accumulate_unevenly, num_samples, num_steps=num_steps
    )
    assert (num_first, num_second) == (-(-num_samples // 2), num_samples // 2)
    assert second == first[: len(second)]
    # Each gradient is the mean over both ranks; one that is done adds nothing.
    steps, window = [], []
    for step in range(num_first):
        window.append((2 * step + 1, 2 * step + 2 if step < num_second else 0))
        ends_a_rank = step + 1 in (num_first, num_second)
        if len(window) == num_steps or ends_a_rank:
            steps.append(sum(map(sum, window)) / num_steps / 2)
            window = []
    assert -first[-1] == pytest.approx(sum(steps))


def test_accumulating_over_a_stream_of_unknown_ends_is_refused(world):
    with pytest.raises(ConfigError, match="accumulated over a stream whose ranks may end at different"):
        world(2).run(accumulate_unevenly, 3, num_steps=2, stream=True)


def test_two_models_and_optimizers_each_train_their_own():
    accelerator = Accelerator(cpu=True)
    models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    first, second, one, other = accelerator.prepare(*models, *optimizers)
    before = [model.weight.item() for model in models]
    accelerator.backward(first(torch.ones(1, 1)).sum() + 2 * second(torch.ones(1, 1)).sum())
    one.step()
    other.step()
    moved = [earlier - model.weight.item() for earlier, model in zip(before, models, strict=True)]
    assert moved == pytest.approx([1.0, 2.0])
    assert (one.optimizer, other.optimizer) == tuple(optimizers)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2, bias=False)
        self.outer = nn.Linear(2, 2, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, inputs):
        return self.outer(self.inner(inputs))


def train_tied():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = Tied()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(2):
        accelerator.backward(model(torch.full((1, 2), float(step + 1))).sum())
        optimizer.step()
        optimizer.zero_grad()
    plain = accelerator.unwrap_model(model)
    return plain.inner.weight is plain.outer.weight, plain.inner.weight.flatten().tolist()


def test_tied_weights_stay_tied_and_train_alike_on_several_processes(world):
    alone = train_tied()
    assert alone[0]
    for tied, weights in world(2).run(train_tied):
        assert tied
        assert weights == pytest.approx(alone[1], rel=1e-6)


def train_partly_frozen():
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    frozen = nn.Linear(1, 1).requires_grad_(False)
    model, frozen, optimizer = accelerator.prepare(model, frozen, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(frozen(model(torch.ones(1, 2))).sum())
    optimizer.step()
    plain = accelerator.unwrap_model(model)
    return torch.equal(before, plain[0].weight), plain[1].weight.flatten().tolist(), type(frozen).__name__


def test_parameters_without_gradients_stay_as_they_are(world):
    alone = train_partly_frozen()
    assert alone[0]
    for unchanged, trained, kind in world(2).run(train_partly_frozen):
        assert (unchanged, kind) == (True, "Linear")
        assert trained == pytest.approx(alone[1], rel=1e-6)


def prepared_twice():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    first = accelerator.prepare(model, optimizer, scheduler)
    raw_again = accelerator.prepare(model, optimizer, scheduler)
    prepared_again = accelerator.prepare(*first)
    alone = accelerator.prepare_model(model), accelerator.prepare_optimizer(optimizer)
    twice = accelerator.prepare(fresh := nn.Linear(1, 1), fresh)
    return [
        all(one is other for one, other in zip(first, raw_again, strict=True)),
        all(one is other for one, other in zip(first, prepared_again, strict=True)),
        alone[0] is first[0] and alone[1] is first[1],
        twice[0] is twice[1],
        (len(accelerator._models), len(accelerator._optimizers), len(accelerator._schedulers)),
    ]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_preparing_again_gives_what_it_gave_before(world, num_processes):
    for outcome in world(num_processes).run(prepared_twice):
        assert outcome == [True, True, True, True, (2, 1, 1)]


def evaluated_then_trained():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    evaluated = accelerator.prepare_model(model, evaluation_mode=True)
    trained = accelerator.prepare(model)
    kinds = [isinstance(one, DistributedDataParallel) for one in (evaluated, trained)]
    return kinds, accelerator.prepare(model) is trained


def test_a_model_prepared_for_evaluation_may_be_prepared_for_training_later(world):
    assert world(2).run(evaluated_then_trained) == [([False, True], True)] * 2


def stranger(*, also_model):
    accelerator = Accelerator(cpu=True)
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    try:
        accelerator.prepare(*([model, other] if also_model else [model]), optimizer)
    except ConfigError as error:
        return str(error)
    return "fine"


def test_an_optimizer_of_unprepared_parameters_is_refused_on_several_processes(world):
    for message in world(2).run(stranger, also_model=False):
        assert "2 of the 4 parameters of the SGD to prepare belong to no prepared model" in message
        assert "parameter 2 of group 0, of shape (3, 2); parameter 3 of group 0, of shape (3,)" in message
        assert "would not be averaged over the processes" in message
    assert world(2).run(stranger, also_model=True) == ["fine"] * 2


def test_an_optimizer_of_unprepared_parameters_is_a_warning_on_one_process():
    with pytest.warns(UserWarning, match="2 of the 4 parameters .* With several processes that is an error"):
        assert stranger(also_model=False) == "fine"


def test_an_optimizer_may_come_after_its_model():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    accelerator.prepare(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    assert isinstance(optimizer, AcceleratedOptimizer)


def spread_model():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model.hf_device_map = {"0": "cpu", "1": "disk"}
    return model


def prepare_spread(*, bypass, evaluation_mode=False):
    with patch_environment(accelerate_bypass_device_map=str(bypass)):
        accelerator = Accelerator(cpu=True)
    model = spread_model()
    verified = accelerator.verify_device_map(model)
    try:
        accelerator.prepare_model(model, evaluation_mode=evaluation_mode)
    except ConfigError as error:
        return verified, str(error)
    return verified, "fine"


def test_a_model_dispatched_by_a_device_map_is_not_trained_by_several_processes(world):
    for verified, message in world(2).run(prepare_spread, bypass=False):
        assert verified
        assert "was spread over several devices with a device map" in message
        assert "cannot be trained by 2 processes" in message
    assert world(2).run(prepare_spread, bypass=True) == [(True, "fine")] * 2
    assert world(2).run(prepare_spread, bypass=False, evaluation_mode=True) == [(True, "fine")] * 2


def test_a_model_dispatched_by_a_device_map_is_left_in_place_on_one_process():
    assert prepare_spread(bypass=False) == (True, "fine")
    assert not Accelerator(cpu=True).verify_device_map(nn.Linear(1, 1))


def compiled(*, before):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    shell = torch.compile(model, backend="eager")
    prepared, optimizer = accelerator.prepare(
        shell if before else model, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    again = accelerator.prepare(shell if before else model)
    accelerator.backward(prepared(torch.ones(1, 2)).sum())
    optimizer.step()
    return [
        again is prepared,
        accelerator.unwrap_model(prepared, keep_torch_compile=False) is model,
        (accelerator.unwrap_model(prepared) is shell) is before,
        sorted(accelerator.get_state_dict(prepared)),
        model.weight.flatten().tolist(),
    ]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_compiled_model_trains_and_comes_back(world, num_processes):
    plain = compiled(before=False)
    for outcome in world(num_processes).run(compiled, before=True):
        assert outcome == [True, True, True, ["bias", "weight"], plain[-1]]


def opened(*, recursive):
    accelerator = Accelerator(cpu=True)
    outer = nn.Sequential(accelerator.prepare(nn.Linear(1, 1)), nn.ReLU())
    inner = extract_model_from_parallel(outer, recursive=recursive)
    return isinstance(inner[0], nn.Linear), isinstance(inner[0], DistributedDataParallel)


def test_containers_around_submodules_are_opened_on_request(world):
    assert world(2).run(opened, recursive=True) == [(True, False)] * 2
    assert world(2).run(opened, recursive=False) == [(False, True)] * 2


def test_placement_is_chosen_for_each_object():
    accelerator = Accelerator(cpu=True)
    skeleton = nn.Linear(1, 1, device="meta")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, placed, *loaders = accelerator.prepare(
        *(skeleton, model, optimizer, DataLoader([1]), DataLoader([2])),
        device_placement=[False, True, False, True, False],
    )
    assert skeleton.weight.is_meta
    assert not placed.device_placement
    assert [loader.device for loader in loaders] == [torch.device("cpu"), None]


def test_freeing_memory_forgets_where_the_accumulation_stood():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = accelerator.prepare(nn.Linear(1, 1))
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).sum())
    accelerator.clear()
    assert (accelerator.step, accelerator._models) == (0, [])
    fresh = accelerator.prepare(model)
    assert accelerator._models == [fresh]


def test_objects_come_back_in_their_order_and_twice_if_they_are_passed_twice():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader([1])
    results = accelerator.prepare("text", loader, scheduler, model, None, optimizer, model)
    kinds = [str, DataLoader, AcceleratedScheduler, nn.Linear, type(None), AcceleratedOptimizer, nn.Linear]
    assert all(map(isinstance, results, kinds))
    assert results[3] is results[6]
    assert (accelerator._models, accelerator._optimizers) == ([results[3]], [results[5]])


def test_an_object_that_was_prepared_before_is_not_prepared_again():
    accelerator = Accelerator(cpu=True)
    first = accelerator.prepare(nn.Linear(1, 1))
    again, second = accelerator.prepare(first, nn.Linear(1, 1))
    assert again is first
    assert accelerator._models == [first, second]
