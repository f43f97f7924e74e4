import datetime
import enum
import gc
import os
import signal
import threading
import warnings
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accel import Accelerator, DataLoaderConfiguration, ProjectConfiguration
from accel_checkpoint.saving.pending_files import FileSink
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Counter:
    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Run:
    """A small prepared run with everything that has a state."""

    def __init__(
        self, *, seed=0, folder=None, limit=None, precision="no", optimizer=torch.optim.Adam, custom=1
    ):
        project = ProjectConfiguration(
            project_dir=folder, automatic_checkpoint_naming=folder is not None, total_limit=limit
        )
        self.accelerator = Accelerator(cpu=True, project_config=project, mixed_precision=precision)
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        inner = optimizer(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        loader = DataLoader(TensorDataset(torch.arange(32.0).reshape(8, 4)), batch_size=2)
        prepared = self.accelerator.prepare(model, inner, scheduler, loader)
        self.model, self.optimizer, self.scheduler, self.loader = prepared
        self.custom = [Counter(seed + number) for number in range(custom)]
        self.accelerator.register_for_checkpointing(*self.custom)

    def train(self, steps=1):
        for _ in range(steps):
            self.accelerator.backward(self.model(torch.ones(2, 4)).sum())
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def state(self):
        weights = {name: value.tolist() for name, value in self.model.state_dict().items()}
        optimizer = self.optimizer.state_dict()
        moments = [[value.tolist() for value in one.values()] for one in optimizer["state"].values()]
        return weights, moments, self.scheduler.get_last_lr(), [one.value for one in self.custom]


def saved(folder, **options):
    run = Run(**options)
    run.train(2)
    run.accelerator.save_state(folder)
    return run


def test_everything_comes_back(tmp_path):
    before = saved(tmp_path / "a")
    drawn = torch.rand(3)
    after = Run(seed=5)
    assert after.state() != before.state()
    after.accelerator.load_state(tmp_path / "a", verify=True)
    assert after.state() == before.state()
    assert torch.equal(torch.rand(3), drawn)


def test_the_files_have_the_documented_names(tmp_path):
    run = Run(precision="fp16", custom=2)
    run.accelerator.prepare(nn.Linear(1, 1))
    run.accelerator.save_state(tmp_path / "a")
    assert sorted(os.listdir(tmp_path / "a")) == [
        "accel_checkpoint.json",
        "custom_checkpoint_0.pkl",
        "custom_checkpoint_1.pkl",
        "dl_state_dict.bin",
        "model.safetensors",
        "model_1.safetensors",
        "optimizer.bin",
        "random_states_0.pkl",
        "scaler.pt",
        "scheduler.bin",
    ]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("safe", [True, False])
def test_weights_may_be_split_into_files(tmp_path, safe):
    before = saved(tmp_path / "whole")
    before.accelerator.save_state(tmp_path / "a", safe_serialization=safe, max_shard_size=40)
    name = "model.safetensors" if safe else "pytorch_model.bin"
    assert (tmp_path / "a" / f"{name}.index.json").is_file()
    assert not (tmp_path / "a" / name).exists()
    after = Run(seed=5)
    after.accelerator.load_state(tmp_path / "a")
    assert after.state() == before.state()


def test_tied_weights_are_written_once_and_come_back(tmp_path):
    def tied():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return Accelerator(cpu=True), model

    accelerator, model = tied()
    accelerator.prepare(model)
    accelerator.save_state(tmp_path / "a")
    assert sorted(load_file(tmp_path / "a" / "model.safetensors")) == ["0.bias", "0.weight", "1.bias"]
    accelerator, other = tied()
    other = accelerator.prepare(other)
    accelerator._models.pop(0) if len(accelerator._models) > 1 else None
    accelerator.load_state(tmp_path / "a")
    assert torch.equal(other[1].weight, model[0].weight)


def test_checkpoints_are_numbered_and_the_oldest_go(tmp_path):
    run = Run(folder=str(tmp_path), limit=2)
    run.accelerator.project_configuration.iteration = 9
    names = [os.path.basename(run.accelerator.save_state()) for _ in range(3)]
    assert names == ["checkpoint_9", "checkpoint_10", "checkpoint_11"]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["checkpoint_10", "checkpoint_11"]
    assert run.accelerator.save_iteration == 12


def test_the_newest_is_loaded_and_the_numbers_continue_after_it(tmp_path):
    run = Run(folder=str(tmp_path))
    for value in (10, 11, 12):
        run.custom[0].value = value
        run.accelerator.save_state()
    other = Run(folder=str(tmp_path))
    other.accelerator.load_state()
    assert (other.custom[0].value, other.accelerator.save_iteration) == (12, 3)
    other.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_1")
    assert (other.custom[0].value, other.accelerator.save_iteration) == (11, 3)


def test_the_steps_are_counted_over_several_runs(tmp_path):
    run = Run(folder=str(tmp_path))
    run.train(3)
    run.accelerator.save_state()
    other = Run(folder=str(tmp_path), seed=5)
    other.accelerator.load_state()
    other.train(2)
    other.accelerator.save_state()
    from accel_checkpoint.manifest import read_manifest

    folder = tmp_path / "checkpoints"
    assert [read_manifest(folder / f"checkpoint_{number}").step for number in (0, 1)] == [3, 5]


def test_a_folder_for_a_checkpoint_that_gets_its_name_by_itself_has_no_effect_and_that_is_reported(tmp_path):
    run = Run(folder=str(tmp_path / "project"))
    with pytest.warns(UserWarning, match="`output_dir='elsewhere'` has no effect"):
        saved = run.accelerator.save_state("elsewhere")
    assert saved == str(tmp_path / "project" / "checkpoints" / "checkpoint_0")


def test_a_number_that_is_taken_is_refused(tmp_path):
    Run(folder=str(tmp_path)).accelerator.save_state()
    with pytest.raises(ConfigError, match="checkpoint_0` exists"):
        Run(folder=str(tmp_path)).accelerator.save_state()


def test_saving_without_a_folder_is_refused():
    with pytest.raises(ConfigError, match="pass `output_dir`"):
        Run().accelerator.save_state()


def test_loading_without_a_folder_is_refused():
    with pytest.raises(ConfigError, match="pass `input_dir`"):
        Run().accelerator.load_state()


def test_an_unknown_argument_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="knows no argument `max_size`"):
        Run().accelerator.save_state(tmp_path / "a", max_size=3)


def test_free_unpickling_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="could run code"):
        Run().accelerator.load_state(tmp_path, {"weights_only": False})


def test_hooks_may_save_and_load_models_themselves(tmp_path):
    run = Run()

    def save(models, weights, output_dir):
        os.mkdir(f"{output_dir}/own")
        torch.save(weights.pop(), f"{output_dir}/own/weights.pt")

    run.accelerator.register_save_state_pre_hook(save)
    run.accelerator.save_state(tmp_path / "a")
    assert (tmp_path / "a" / "own" / "weights.pt").is_file()
    assert not (tmp_path / "a" / "model.safetensors").exists()
    other, called = Run(seed=5), []
    hook = other.accelerator.register_load_state_pre_hook(
        lambda models, folder: called.append((models.pop(), folder))
    )
    other.accelerator.load_state(tmp_path / "a", verify=True)
    assert called == [(other.model, str(tmp_path / "a"))]
    hook.remove()
    with pytest.raises(CheckpointError, match=r"`model.safetensors`, the state of model 0, is missing"):
        other.accelerator.load_state(tmp_path / "a")


def test_only_objects_with_a_state_can_be_registered():
    with pytest.raises(ConfigError, match=r"index 1 \(list\)"):
        Accelerator(cpu=True).register_for_checkpointing(Counter(), [])


def test_a_state_that_only_code_could_rebuild_is_refused_when_it_is_saved(tmp_path):
    run = Run()
    run.custom[0].value = lambda: None
    with pytest.raises(CheckpointError, match=r"custom_checkpoint_0.pkl.*`value` is a `builtins.function`"):
        run.accelerator.save_state(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_a_save_over_an_existing_checkpoint_keeps_what_a_person_put_there(tmp_path):
    run = saved(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "a" / "optimizer_1.bin").write_text("of an earlier save")
    run.train()
    run.accelerator.save_state(tmp_path / "a")
    other = Run(seed=5)
    other.accelerator.load_state(tmp_path / "a", verify=True)
    assert other.state() == run.state()
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "a" / "optimizer_1.bin").exists()


def test_a_folder_that_exists_already_is_filled(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tokens.json").write_text("{}")
    run = saved(tmp_path / "a")
    other = Run(seed=5)
    other.accelerator.load_state(tmp_path / "a", verify=True)
    assert other.state() == run.state()
    assert (tmp_path / "a" / "tokens.json").read_text() == "{}"


def test_a_save_behind_the_loop_holds_the_moment_of_the_call(tmp_path):
    run = Run()
    run.train(2)
    for name in ("first", "second"):
        run.train()
        expected = run.state()
        handle = run.accelerator.save_state(tmp_path / name, blocking=False)
        run.train(3)
        run.custom[0].value += 100
        assert handle.wait() == tmp_path / name
        assert handle.done()
        assert handle.exception() is None
        other = Run(seed=5)
        other.accelerator.load_state(tmp_path / name, verify=True)
        assert other.state() == expected


def test_a_save_behind_the_loop_writes_in_a_separate_thread(tmp_path, monkeypatch):
    threads = set()
    append = FileSink._append

    def watched(sink, chunk):
        threads.add(threading.current_thread().name)
        append(sink, chunk)

    monkeypatch.setattr(FileSink, "_append", watched)
    run = Run()
    run.accelerator.save_state(tmp_path / "behind", blocking=False)._thread.join()
    assert threads == {"save-behind"}


def fail_in_background(run, folder):
    def hook(models, weights, output_dir):
        raise OSError(28, "No space left on device")

    hook = run.accelerator.register_save_state_pre_hook(hook)
    handle = run.accelerator.save_state(folder, blocking=False)
    hook.remove()
    return handle


@pytest.mark.parametrize("blocking", [True, False])
def test_the_save_after_one_that_failed_in_the_background_is_made(tmp_path, caplog, blocking):
    run = Run()
    fail_in_background(run, tmp_path / "full")
    saved = run.accelerator.save_state(tmp_path / "last", blocking=blocking)
    if not blocking:
        saved.wait()
    [message] = [record.getMessage() for record in caplog.records]
    assert f"Saving `{tmp_path / 'full'}` in the background failed: " in message
    assert "No space left on device" in message
    assert os.listdir(tmp_path) == ["last"]
    caplog.clear()
    fail_in_background(run, tmp_path / "full")
    run.accelerator.load_state(tmp_path / "last", verify=True)
    assert "No space left on device" in caplog.text


def test_a_preempted_run_saves_and_leaves_with_its_code_after_a_failure_in_the_background(tmp_path):
    run = Run()
    fail_in_background(run, tmp_path / "full")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with pytest.raises(SystemExit) as left, run.accelerator.handle_preemption(exit_code=75) as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        while not preemption.should_stop:
            run.train()
        run.accelerator.save_state(tmp_path / "last")
    for number, handler in before.items():
        signal.signal(number, handler)
    assert left.value.code == 75
    assert (tmp_path / "last" / "accel_checkpoint.json").is_file()


def test_the_end_of_training_raises_a_failure_in_the_background(tmp_path):
    run = Run()
    fail_in_background(run, tmp_path / "full")
    with pytest.raises(CheckpointError, match="No space left on device"):
        run.accelerator.end_training()


def test_what_cannot_be_copied_is_reported_by_the_handle_and_the_numbers_continue(tmp_path):
    run = Run(folder=str(tmp_path))
    run.custom[0].value = object()
    handle = run.accelerator.save_state(blocking=False)
    with pytest.raises(CheckpointError, match="custom_checkpoint_0.pkl` cannot be saved"):
        handle.wait()
    run.custom[0].value = 1
    assert run.accelerator.save_state().endswith("checkpoint_1")
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint_1"]


def save_behind_with_one_failing_whom_only_one_asks(folder):
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(nn.Linear(2, 2))
    rank = accelerator.process_index

    def hook(models, weights, output_dir):
        if rank == 1:
            raise KeyError("no luck here")

    hook = accelerator.register_save_state_pre_hook(hook)
    handle = accelerator.save_state(blocking=False)
    hook.remove()
    told = [str(handle.exception())] if rank == 0 else []
    for blocking in (False, True):
        try:
            saved = accelerator.save_state(blocking=blocking)
            told.append(str(saved if blocking else saved.exception()))
        except CheckpointError as error:
            told.append(str(error))
    accelerator.load_state(verify=True)
    return told


def test_ranks_go_the_same_way_after_a_failure_that_one_of_them_knows(world, tmp_path):
    first, second = world(2).run(save_behind_with_one_failing_whom_only_one_asks, str(tmp_path))
    reason = "rank 1: KeyError: 'no luck here'"
    assert reason in first[0]  # by the handle
    assert first[1:] == second == ["None", str(tmp_path / "checkpoints" / "checkpoint_2")]


def load_after_a_failure_that_only_one_was_told(folder, *, names_folder):
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(nn.Linear(2, 2))
    saved = accelerator.save_state()
    input_dir = saved if names_folder else None

    def hook(models, weights, output_dir):
        if accelerator.process_index == 1:
            raise KeyError("no luck here")

    hook = accelerator.register_save_state_pre_hook(hook)
    handle = accelerator.save_state(blocking=False)
    hook.remove()
    if accelerator.is_main_process:
        handle.exception()
    return accelerator.load_state(input_dir)


@pytest.mark.parametrize("names_folder", [True, False])
def test_every_rank_loads_after_a_failure_that_one_of_them_does_not_know(world, tmp_path, names_folder):
    loaded = world(2).run(
        load_after_a_failure_that_only_one_was_told, str(tmp_path), names_folder=names_folder
    )
    assert loaded == [True, True]


def test_an_interruption_after_the_commit_leaves_the_checkpoint_and_the_next_number(tmp_path, monkeypatch):
    run = Run(folder=str(tmp_path), limit=1)
    run.accelerator.save_state()

    def interrupted(path, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", interrupted)
        run.accelerator.save_state()
    run.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_1", verify=True)
    assert run.accelerator.save_state().endswith("checkpoint_2")
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint_2"]


def test_gradients_of_an_open_accumulation_come_back(tmp_path):
    def run(seed):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        torch.manual_seed(seed)
        model = nn.Linear(2, 1)
        return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def micro_batch(accelerator, model, optimizer):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()

    first = run(0)
    micro_batch(*first)
    first[0].save_state(tmp_path / "a")
    micro_batch(*first)
    second = run(1)
    second[0].load_state(tmp_path / "a")
    micro_batch(*second)
    assert torch.equal(first[1].weight, second[1].weight)


def save_on_each_rank(folder, *, fail_on=None):
    run = Run(custom=0)

    def hook(models, weights, output_dir):
        if run.accelerator.process_index == fail_on:
            raise KeyError("no luck here")

    run.accelerator.register_save_state_pre_hook(hook)
    torch.manual_seed(run.accelerator.process_index)
    run.accelerator.save_state(folder)
    drawn = torch.rand(2)
    torch.manual_seed(77)
    run.accelerator.load_state(folder, verify=True)
    return torch.equal(torch.rand(2), drawn), drawn.tolist()


def test_every_rank_gets_its_own_random_states_back(world, tmp_path):
    (first, one), (second, other) = world(2).run(save_on_each_rank, str(tmp_path / "a"))
    assert first
    assert second
    assert one != other
    assert {"random_states_0.pkl", "random_states_1.pkl"} < set(os.listdir(tmp_path / "a"))


class Part(IterableDataset):
    """A stream that splits itself into parts; each knows how far it has been read."""

    num_shards = 2

    def __init__(self, first=0, last=23):
        self.first, self.last, self.position = first, last, 0

    def shard(self, num_shards, index):
        return Part(10 * index, 10 + 13 * index)

    def __iter__(self):
        while self.first + self.position < self.last:
            self.position += 1
            yield self.first + self.position - 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def read_parts(folder, *, resume):
    settings = DataLoaderConfiguration(dispatch_batches=False, even_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    loader = accelerator.prepare(DataLoader(Part(), batch_size=2 + accelerator.process_index))
    if resume:
        accelerator.load_state(folder, restore_loaders=True)
    read = []
    for step, batch in enumerate(loader):
        read += batch.tolist()
        if step == 2 and not resume:
            accelerator.save_state(folder)
            break
    return read


def test_every_rank_continues_with_its_own_part_of_a_stream(world, tmp_path):
    before = world(2).run(read_parts, str(tmp_path / "a"), resume=False)
    after = world(2).run(read_parts, str(tmp_path / "a"), resume=True)
    assert [one + rest for one, rest in zip(before, after, strict=True)] == [[*range(10)], [*range(10, 23)]]
    assert {"dl_state_dict.bin", "dl_state_dict_0_rank_1.bin"} < set(os.listdir(tmp_path / "a"))


def test_a_rank_that_fails_fails_the_save_everywhere_with_its_reason(world, tmp_path):
    with pytest.raises(CheckpointError, match="rank 1: KeyError: 'no luck here'") as caught:
        world(2).run(save_on_each_rank, str(tmp_path / "a"), fail_on=1)
    assert "rank 0 of 2" in caught.value.__notes__[0]
    assert "rank 1 of 2" in caught.value.__notes__[0]
    assert os.listdir(tmp_path) == []


def save_in_own_folder(folder):
    accelerator = Accelerator(cpu=True)
    accelerator.save_state(f"{folder}/{accelerator.process_index}")


def test_ranks_that_name_different_folders_are_reported(world, tmp_path):
    with pytest.raises(CheckpointError, match="ranks save to different folders"):
        world(2).run(save_in_own_folder, str(tmp_path))


def load_with_one_broken(folder):
    run = Run(custom=0)
    run.accelerator.save_state(folder)
    run.accelerator.wait_for_everyone()
    if run.accelerator.is_main_process:
        path = os.path.join(folder, "random_states_1.pkl")
        content = bytearray(Path(path).read_bytes())
        content[-200:] = bytes(200)
        Path(path).write_bytes(content)
    run.accelerator.wait_for_everyone()
    try:
        run.accelerator.load_state(folder)
    except CheckpointError as error:
        return str(error)


def test_what_one_rank_cannot_load_is_reported_by_all(world, tmp_path):
    here, there = world(2).run(load_with_one_broken, str(tmp_path / "a"))
    assert "rank 1" in here
    assert "random_states_1.pkl" in there


def save_as_two_nodes(folder, *, each, names=("node0", "node1")):
    from dataclasses import replace

    from accel_state import current_runtime

    project = ProjectConfiguration(project_dir=f"{folder}/{{}}", save_on_each_node=each)
    accelerator = Accelerator(cpu=True, project_config=project)
    runtime = current_runtime()
    rank = runtime.topology.rank
    runtime.topology = replace(
        runtime.topology, num_nodes=2, node_rank=rank, local_rank=0, local_world_size=1
    )
    accelerator.prepare(nn.Linear(2, 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        accelerator.save_state(f"{folder}/{names[rank]}/a")
    told = [str(one.message) for one in told]
    if each or names[0] == names[1]:
        accelerator.load_state(f"{folder}/{names[rank]}/a", verify=True)
        return told
    try:
        accelerator.load_state(f"{folder}/{names[rank]}/a", verify=True)
    except CheckpointError as error:
        return [*told, str(error)]


@pytest.mark.parametrize("each", [True, False])
def test_nodes_without_a_shared_disk_each_commit_their_part(world, tmp_path, each):
    main_told, told = world(2).run(save_as_two_nodes, str(tmp_path), each=each)
    assert len(told) == (0 if each else 2)
    if not each:
        assert "cannot be loaded here. Set `save_on_each_node`" in told[0]
        assert "`model.safetensors`, the state of model 0, is missing" in told[1]
        assert "The main process's machine may have it" in told[1]
        assert "rank 1" in main_told[0]
    from accel_checkpoint.manifest import read_manifest

    main, other = read_manifest(tmp_path / "node0" / "a"), read_manifest(tmp_path / "node1" / "a")
    assert {entry.name for entry in main.files} >= {
        "model.safetensors",
        "random_states_0.pkl",
        "random_states_1.pkl",
    }
    assert {entry.name for entry in main.files_here} == {"model.safetensors", "random_states_0.pkl"}
    assert ("model.safetensors" in {entry.name for entry in other.files_here}) is each
    assert "random_states_1.pkl" in {entry.name for entry in other.files_here}


def save_as_two_nodes_on_one_disk(folder):
    save_as_two_nodes(folder, each=False, names=("shared", "shared"))


def test_nodes_with_a_shared_disk_commit_together(world, tmp_path):
    world(2).run(save_as_two_nodes_on_one_disk, str(tmp_path))
    from accel_checkpoint.manifest import read_manifest

    manifest = read_manifest(tmp_path / "shared" / "a")
    assert {entry.name for entry in manifest.files_here} == {
        "model.safetensors",
        "random_states_0.pkl",
        "random_states_1.pkl",
    }
    assert os.listdir(tmp_path / "shared") == ["a"]


def test_the_end_of_training_waits_for_the_save_under_way(tmp_path):
    run = Run()
    handle = run.accelerator.save_state(tmp_path / "a", blocking=False)
    run.accelerator.end_training()
    assert handle.done()
    assert (tmp_path / "a" / "accel_checkpoint.json").is_file()


BEGUN = datetime.date(2020, 1, 2)


class Color(enum.Enum):
    RED = 1

    def __reduce_ex__(self, protocol):
        """Pickle it as since Python 3.11.4: before, by `getattr`, which torch lets no file call."""
        return type(self), (self.value,)


@dataclass
class Progress:
    color: Color
    seen: dict[str, torch.Tensor]
    begun: datetime.date


class Holder:
    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"inner": [self.value]}

    def load_state_dict(self, state):
        [self.value] = state["inner"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (deque([1]), "collections.deque"),
        (defaultdict(int), "collections.defaultdict"),
        (Color.RED, f"{__name__}.Color"),
        (Progress(Color.RED, {}, BEGUN), f"{__name__}.Progress"),
    ],
)
def test_what_cannot_be_saved_is_reported_when_it_is_registered(value, name):
    accelerator = Accelerator(cpu=True)
    accelerator.register_for_checkpointing(Holder(1))
    message = f"`custom_checkpoint_1.pkl` cannot be saved: `inner.0` is a `{name}`.*add_safe_globals"
    with pytest.raises(CheckpointError, match=message):
        accelerator.register_for_checkpointing(Holder(value))
    assert len(accelerator._custom_objects) == 1


def test_classes_registered_with_torch_are_saved_and_loaded(tmp_path):
    accelerator = Accelerator(cpu=True)
    value = Progress(Color.RED, {"a": torch.ones(2)}, BEGUN)
    holder = Holder(value)
    with torch.serialization.safe_globals([Progress, Color, datetime.date]):
        accelerator.register_for_checkpointing(holder)
        accelerator.save_state(tmp_path / "a")
        holder.value = None
        accelerator.load_state(tmp_path / "a")
    assert (holder.value.color, holder.value.begun) == (Color.RED, BEGUN)
    assert torch.equal(holder.value.seen["a"], torch.ones(2))
    with pytest.raises(CheckpointError, match="is not loaded: it is damaged or contains more than tensors"):
        accelerator.load_state(tmp_path / "a")


@pytest.mark.parametrize("registered", [[deque], [Progress]])
def test_a_registered_class_that_could_not_be_loaded_is_refused(registered):
    value = deque([1]) if registered == [deque] else Progress(Color.RED, {}, BEGUN)
    with (
        torch.serialization.safe_globals(registered),
        pytest.raises(CheckpointError, match="the classes of their fields"),
    ):
        Accelerator(cpu=True).register_for_checkpointing(Holder(value))


class RegistersItself(Counter):
    def __init__(self, accelerator):
        accelerator.register_for_checkpointing(self)
        super().__init__(3)


def test_an_object_may_register_itself_before_it_has_a_state(tmp_path):
    accelerator = Accelerator(cpu=True)
    counter = RegistersItself(accelerator)
    accelerator.save_state(tmp_path / "a")
    counter.value = 0
    accelerator.load_state(tmp_path / "a")
    assert counter.value == 3


@pytest.mark.parametrize("end", ["free_memory", "end_training"])
def test_the_snapshot_of_a_save_in_the_background_is_released(tmp_path, end):
    def num_weights():
        gc.collect()
        tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
        return sum(tensor.shape == (1234, 567) for tensor in tensors)

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(567, 1234, bias=False))  # what is released is not the model
    accelerator.save_state(tmp_path / "a", blocking=False).wait()
    assert num_weights() == 2
    getattr(accelerator, end)()
    assert num_weights() == 1
    assert model.weight.numel() == 1234 * 567


def test_a_map_location_that_is_no_device_is_an_error_before_anything_is_loaded(tmp_path):
    run = Run()
    run.accelerator.save_state(tmp_path / "a")
    for options in ({"load_kwargs": {"map_location": "gpu0"}}, {"map_location": "gpu0"}):
        with pytest.raises(ConfigError, match="`map_location` must name a device such as .*, got `gpu0`"):
            run.accelerator.load_state(tmp_path / "a", **options)
    for location in ("on_device", "cpu", run.accelerator.device):
        run.accelerator.load_state(tmp_path / "a", load_kwargs={"map_location": location})
