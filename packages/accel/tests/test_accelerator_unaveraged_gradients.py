"""Who steps gradients that DDP did not average is reported once; others are not."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from accel import Accelerator, DistributedDataParallelKwargs, LocalSGD
from accel_backends import UnaveragedGradientsWarning

pytestmark = pytest.mark.usefixtures("fresh_state")


class Net(nn.Module):
    """Two layers, of which a loss may use one."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, rows):
        return self.head(torch.tanh(self.encoder(rows)))


def rows():
    """Return other rows on each rank."""
    return torch.full((2, 4), float(Accelerator().process_index + 1))


def prepared(accelerator, *, make=torch.optim.SGD):
    torch.manual_seed(0)
    model = Net()
    return accelerator.prepare(model, make(model.parameters(), lr=0.1))


def train(accelerator, compute, *, num_steps=3, model=None, optimizer=None, set_to_none=True):
    """Train with the losses that ``compute(model)`` yields, each of which gets its own backward."""
    if model is None:
        model, optimizer = prepared(accelerator)
    for _ in range(num_steps):
        for loss in compute(model):
            accelerator.backward(loss, retain_graph=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    return model


def unwrapped(accelerator):
    train(accelerator, lambda model: [accelerator.unwrap_model(model)(rows()).square().mean()])


def one_step_of_the_module(accelerator):
    train(accelerator, lambda model: [model.module(rows()).square().mean()], num_steps=1)


def encoder_alone(accelerator):
    train(accelerator, lambda model: [model.module.encoder(rows()).square().mean()])


def head_alone(accelerator):
    train(accelerator, lambda model: [model.module.head(rows()[:, :3]).square().mean()])


def after_training_as_it_should_be(accelerator):
    model, optimizer = prepared(accelerator)
    train(accelerator, lambda model: [model(rows()).square().mean()], model=model, optimizer=optimizer)
    train(accelerator, lambda model: [model.module(rows()).mean()], model=model, optimizer=optimizer)


def second_backward(accelerator):
    def compute(model):
        loss = model(rows()).square().mean()
        return [loss, loss]

    train(accelerator, compute)


def two_forwards_and_then_two_backwards(accelerator):
    train(accelerator, lambda model: [model(rows()).mean(), model(rows()).square().mean()])


def another_loss_after_the_average(accelerator):
    def compute(model):
        yield model(rows()).square().mean()
        yield model.module.encoder(rows()).square().mean()

    train(accelerator, compute)


def another_loss_for_one_of_two_optimizers(accelerator):
    """Only the optimizer of the encoder steps gradients that were not averaged."""
    model = Net()
    model, of_encoder, of_head = accelerator.prepare(
        model,
        torch.optim.SGD(model.encoder.parameters(), lr=0.1),
        torch.optim.SGD(model.head.parameters(), lr=0.1),
    )
    accelerator.backward(model(rows()).square().mean())
    accelerator.backward(model.module.encoder(rows()).square().mean())
    of_encoder.step()
    of_head.step()


def evaluation_before_the_loss(accelerator):
    """A call without gradients prepares no average, as in a loop that plays with the model and then learns."""

    def compute(model):
        with torch.no_grad():
            model(rows())
        with torch.inference_mode():
            model(rows())
        yield model.module(rows()).square().mean()

    train(accelerator, compute)


def thawed_layers_unwrapped(accelerator):
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.head.parameters(), lr=0.1))
    train(accelerator, lambda model: [model(rows()).mean()], model=model, optimizer=optimizer)
    model.module.head.requires_grad_(False)
    optimizer.zero_grad()
    optimizer.add_param_group({"params": list(model.module.encoder.parameters())})
    train(accelerator, lambda model: [model.module(rows()).mean()], model=model, optimizer=optimizer)


def static_graph(accelerator):
    train(accelerator, lambda model: [model.module(rows()).square().mean()])


def last_batch_of_a_window(accelerator):
    model, optimizer = prepared(accelerator)
    for number in range(4):
        with accelerator.accumulate(model):
            net = model.module if number % 2 else model
            accelerator.backward(net(rows()).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def lbfgs_unwrapped(accelerator):
    model, optimizer = prepared(accelerator, make=torch.optim.LBFGS)

    def closure():
        optimizer.zero_grad()
        loss = model.module(rows()).square().mean()
        accelerator.backward(loss)
        return loss

    for _ in range(2):
        optimizer.step(closure)


def compiled_unwrapped(accelerator):
    model = torch.compile(Net(), backend="eager")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(
        accelerator,
        lambda model: [accelerator.unwrap_model(model)(rows()).square().mean()],
        model=model,
        optimizer=optimizer,
    )


WRONG = {
    scenario.__name__: scenario
    for scenario in (
        unwrapped,
        one_step_of_the_module,
        encoder_alone,
        head_alone,
        after_training_as_it_should_be,
        second_backward,
        two_forwards_and_then_two_backwards,
        another_loss_after_the_average,
        another_loss_for_one_of_two_optimizers,
        evaluation_before_the_loss,
        thawed_layers_unwrapped,
        static_graph,
        last_batch_of_a_window,
        lbfgs_unwrapped,
        compiled_unwrapped,
    )
}


def called(accelerator):
    train(accelerator, lambda model: [model(rows()).square().mean()])


def forward_by_name(accelerator):
    train(accelerator, lambda model: [model.forward(rows()).square().mean()])


def one_backward_for_both(accelerator):
    train(accelerator, lambda model: [model(rows()).mean() + model.module.encoder(rows()).mean()])


def another_loss_before_the_average(accelerator):
    def compute(model):
        yield model.module.encoder(rows()).square().mean()
        yield model(rows()).square().mean()

    train(accelerator, compute)


def forward_and_backward_twice(accelerator):
    def compute(model):
        yield model(rows()).mean()
        yield model(rows()).square().mean()

    train(accelerator, compute)


def generator_and_discriminator(accelerator):
    """The loss of the generator leaves gradients in the discriminator, which are neither averaged nor stepped."""
    generator, discriminator = nn.Linear(4, 4), Net()
    generator, discriminator, first, second = accelerator.prepare(
        generator,
        discriminator,
        torch.optim.Adam(generator.parameters()),
        torch.optim.Adam(discriminator.parameters()),
    )
    for number in range(4):
        fake = generator(rows())
        second.zero_grad(set_to_none=False)
        accelerator.backward((discriminator(fake.detach()) - discriminator(rows())).mean())
        second.step()
        if number % 2:  # the discriminator is stepped twice as often
            first.zero_grad()
            accelerator.backward(-accelerator.unwrap_model(discriminator)(generator(rows())).mean())
            first.step()


def alternating_models(accelerator, *, set_to_none):
    """One optimizer, two models in turn: of the other there are zeros, or what an earlier step left."""
    first, second = Net(), Net()
    parameters = [*first.parameters(), *second.parameters()]
    first, second, optimizer = accelerator.prepare(first, second, torch.optim.SGD(parameters, lr=0.1))
    for number in range(6):
        accelerator.backward((second if number % 2 else first)(rows()).square().mean())
        optimizer.step()
        if set_to_none is not None:
            optimizer.zero_grad(set_to_none=set_to_none)


def alternating_with_zeros(accelerator):
    alternating_models(accelerator, set_to_none=False)


def alternating_with_leftovers(accelerator):
    alternating_models(accelerator, set_to_none=None)


def cleared_before_the_step(accelerator):
    """Gradients that were not averaged are cleared in place before another model is trained."""
    first, second = Net(), Net()
    parameters = [*first.parameters(), *second.parameters()]
    first, second, optimizer = accelerator.prepare(first, second, torch.optim.SGD(parameters, lr=0.1))
    for _ in range(3):
        accelerator.backward(second.module(rows()).square().mean())
        optimizer.zero_grad(set_to_none=False)
        accelerator.backward(first(rows()).square().mean())
        optimizer.step()


def two_optimizers(accelerator):
    model = Net()
    model, first, second = accelerator.prepare(
        model,
        torch.optim.SGD(model.encoder.parameters(), lr=0.1),
        torch.optim.SGD(model.head.parameters(), lr=0.1),
    )
    for number in range(4):
        accelerator.backward(model(rows()).square().mean())
        first.step()
        if number % 2:
            second.step()
        first.zero_grad()


def stepping_twice(accelerator):
    model, optimizer = prepared(accelerator)
    accelerator.backward(model(rows()).square().mean())
    optimizer.step()
    optimizer.step()


def accumulating(accelerator):
    model, optimizer = prepared(accelerator)
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(rows()).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def averaging_by_hand(accelerator):
    model, optimizer = prepared(accelerator)
    for _ in range(3):
        with accelerator.no_sync(model):
            accelerator.backward(model(rows()).square().mean())
        for parameter in model.parameters():
            parameter.grad = accelerator.reduce(parameter.grad, "mean")
        optimizer.step()
        optimizer.zero_grad()


def local_sgd_unwrapped(accelerator):
    model, optimizer = prepared(accelerator)
    with LocalSGD(accelerator, model, 2) as local_sgd:
        for _ in range(4):
            accelerator.backward(accelerator.unwrap_model(model)(rows()).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            local_sgd.step()


def averaging_late(accelerator):
    model, optimizer = prepared(accelerator)
    for _ in range(3):
        with accelerator.no_sync(model):
            losses = [model(rows()).square().mean() for _ in range(2)]
            accelerator.backward(losses[0])
        with accelerator.trigger_sync_in_backward(model):
            accelerator.backward(losses[1])
        optimizer.step()
        optimizer.zero_grad()


def lbfgs(accelerator):
    model, optimizer = prepared(accelerator, make=torch.optim.LBFGS)

    def closure():
        optimizer.zero_grad()
        loss = model(rows()).square().mean()
        accelerator.backward(loss)
        return loss

    for _ in range(3):
        optimizer.step(closure)


def uneven_inputs(accelerator):
    model, optimizer = prepared(accelerator)
    with accelerator.join_uneven_inputs([model]):
        for _ in range(2 + accelerator.process_index):
            accelerator.backward(model(rows()).square().mean())
            optimizer.step()
            optimizer.zero_grad()


def prepared_apart_and_twice(accelerator):
    model = accelerator.prepare(Net())
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    model, optimizer = accelerator.prepare(model, optimizer)
    train(accelerator, lambda model: [model(rows()).mean()], model=model, optimizer=optimizer)


def frozen_teacher(accelerator):
    model, optimizer = prepared(accelerator)
    teacher = accelerator.prepare(Net().requires_grad_(False))

    def compute(model):
        return [(model(rows()) - accelerator.unwrap_model(teacher)(rows())).square().mean()]

    train(accelerator, compute, model=model, optimizer=optimizer)


def copies(accelerator):
    model, optimizer = prepared(accelerator)
    train(accelerator, lambda model: [model(rows()).mean()], model=model, optimizer=optimizer)
    for change in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        again = change((model, optimizer))
        train(accelerator, lambda model: [model(rows()).mean()], model=again[0], optimizer=again[1])


class TwiceCheckpointed(nn.Module):
    """One layer that is run twice, and again in each backward, which adds to its gradients twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows):
        for _ in range(2):
            rows = checkpoint(self.layer, rows, use_reentrant=True)
        return rows


def static_graph_with_checkpointing(accelerator):
    model = TwiceCheckpointed()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(
        accelerator,
        lambda model: [model(rows().requires_grad_()).square().mean()],
        model=model,
        optimizer=optimizer,
    )


def thawed_layers(accelerator):
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.head.parameters(), lr=0.1))
    train(accelerator, lambda model: [model(rows()).mean()], model=model, optimizer=optimizer)
    optimizer.add_param_group({"params": list(model.module.encoder.parameters())})
    train(accelerator, lambda model: [model(rows()).mean()], model=model, optimizer=optimizer)


RIGHT = {
    scenario.__name__: scenario
    for scenario in (
        called,
        forward_by_name,
        one_backward_for_both,
        another_loss_before_the_average,
        forward_and_backward_twice,
        generator_and_discriminator,
        alternating_with_zeros,
        alternating_with_leftovers,
        cleared_before_the_step,
        two_optimizers,
        stepping_twice,
        accumulating,
        averaging_by_hand,
        local_sgd_unwrapped,
        averaging_late,
        lbfgs,
        uneven_inputs,
        prepared_apart_and_twice,
        frozen_teacher,
        copies,
        static_graph_with_checkpointing,
        thawed_layers,
    )
}


def messages(scenario):
    """Return what a scenario warns of on this rank, and in which file."""
    wrapping = DistributedDataParallelKwargs(static_graph=scenario.startswith("static_graph"))
    window = 2 if scenario in ("accumulating", "last_batch_of_a_window") else 1
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=window, kwargs_handlers=[wrapping])
    return recorded({**WRONG, **RIGHT}[scenario], accelerator)[1]


def recorded(run, *arguments):
    """Return what ``run`` returns, and text and file of each of our warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(*arguments)
    ours = [one for one in caught if issubclass(one.category, UnaveragedGradientsWarning)]
    return result, [(str(one.message), one.filename) for one in ours]


@pytest.mark.parametrize("scenario", WRONG)
def test_unaveraged_gradients_bring_one_warning_on_every_rank(world, scenario):
    for told in world(2).run(messages, scenario):
        ((message, filename),) = told
        assert "steps gradients of `Net` that were not averaged over the ranks" in message
        assert "Compute the loss by calling the prepared model" in message
        assert filename == __file__


@pytest.mark.parametrize("scenario", RIGHT)
def test_gradients_that_are_averaged_or_meant_to_differ_bring_none(world, scenario):
    assert world(2).run(messages, scenario) == [[], []]


def in_fp16():
    """Step with scaled gradients, of which those of one step overflow; return which steps were skipped."""
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model, optimizer = prepared(accelerator)
    skipped = []
    for number in range(4):
        loss = model(rows()).square().mean()
        accelerator.backward(loss * float("inf") if number == 1 else loss)
        optimizer.step()
        optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
    return skipped


def test_a_step_that_an_overflow_skips_brings_none(world):
    for skipped, told in world(2).run(recorded, in_fp16):
        assert skipped[1]
        assert told == []


def resumed(folder, is_right):
    """Stop within a window, and continue with the gradients of the checkpoint."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = prepared(accelerator)
    with accelerator.accumulate(model):
        accelerator.backward(model(rows()).square().mean())
    accelerator.save_state(folder)
    train(accelerator, lambda model: [model(rows()).mean()], model=model, optimizer=optimizer)
    accelerator.load_state(folder)
    with accelerator.accumulate(model):
        net = model if is_right else model.module
        accelerator.backward(net(rows()).square().mean())
        optimizer.step()


@pytest.mark.parametrize("is_right", [True, False])
def test_a_window_that_is_resumed_is_judged_by_its_last_batch(world, tmp_path, is_right):
    for _, told in world(2).run(recorded, resumed, str(tmp_path / "checkpoint"), is_right):
        assert len(told) == (not is_right)


def filtered():
    accelerator = Accelerator(cpu=True)
    warnings.filterwarnings("ignore", category=UnaveragedGradientsWarning)
    unwrapped(accelerator)


def test_a_filter_silences_it(world):
    assert [told for _, told in world(2).run(recorded, filtered)] == [[], []]


def graphs(make):
    """Return what dynamo counts in six steps with a compiled DDP."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, optimizer = make()
    compiled = torch.compile(model, backend="eager")
    for number in range(6):
        with model.no_sync() if number % 2 else torch.enable_grad():
            compiled(rows()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    counted = torch._dynamo.utils.counters
    found = {name: dict(counted[name]) for name in ("frames", "stats", "graph_break", "recompiles")}
    torch._dynamo.reset()
    return found


def plain():
    model = nn.parallel.DistributedDataParallel(Net())
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def compiled_beside_plain():
    accelerator = Accelerator(cpu=True)
    graphs(
        lambda: prepared(accelerator)
    )  # what is only counted when it is traced for the first time in a process
    return graphs(plain), graphs(lambda: prepared(accelerator))


def test_a_compiled_ddp_has_the_graphs_of_torchs_own(world):
    for theirs, ours in world(2).run(compiled_beside_plain):
        assert theirs["stats"]["unique_graphs"] > 0
        assert ours == theirs
