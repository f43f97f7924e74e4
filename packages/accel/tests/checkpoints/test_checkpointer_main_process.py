"""Saves that not every rank makes, or not at the same time."""

import os
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accel import (
    Accelerator,
    DataLoaderConfiguration,
    FullyShardedDataParallelPlugin,
    ProjectConfiguration,
)
from accel_checkpoint.ranks.agreement import StoreAgreement
from accel_state import current_runtime
from accel_state.errors import CheckpointError, ConfigError
from tools.harness.scripts import start_ranks

pytestmark = pytest.mark.usefixtures("fresh_state")
LIMIT_S = 20.0
"""Longer than rank 0 waits, shorter than any timeout of the process group."""


class Run:
    """A small prepared run; ``own_parts`` makes the position of its loader a state of each rank."""

    def __init__(self, folder=None, *, seed=0, own_parts=False, **arguments):
        project = ProjectConfiguration(
            project_dir=folder, automatic_checkpoint_naming=folder is not None, total_limit=2
        )
        self.accelerator = Accelerator(cpu=True, project_config=project, **arguments)
        self.rank = self.accelerator.process_index
        torch.manual_seed(seed)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        if own_parts:
            self.loader = self.accelerator.prepare(DataLoader(Numbers(), batch_size=2))

    def step(self):
        rows = torch.full((2, 4), float(self.rank))
        self.accelerator.backward(self.model(rows).sum())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self):
        return self.accelerator.unwrap_model(self.model).weight.tolist()

    def gathered_ranks(self):
        """Return what shows that the collectives of all ranks still pair up."""
        return self.accelerator.gather(torch.tensor([self.rank])).tolist()


class Numbers(IterableDataset):
    """A stream that splits itself between the ranks."""

    num_shards = 8

    def __init__(self, numbers=range(24)):
        self.numbers = numbers

    def shard(self, num_shards, index):
        return Numbers(range(index, 24, num_shards))

    def __iter__(self):
        return iter(self.numbers)


def messages_of(work):
    """Return the result of ``work`` and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        result = work()
    return result, [str(one.message) for one in shown]


@contextmanager
def waiting(seconds):
    """Let rank 0 wait less, where a test does not measure it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_checkpoint.saving.saver.WAIT_S", float(seconds))
        yield


def wait_for(path):
    end_s = time.monotonic() + LIMIT_S
    while not Path(path).exists():
        assert time.monotonic() < end_s, f"{path} does not appear"
        time.sleep(0.005)


def states_in(folder):
    return sorted(path.name for path in folder.glob("random_states_*"))


def save_in_turn(folder):
    waits_s, agree = [], StoreAgreement.agree

    def noted(*words, wait_s=None, **options):
        waits_s.append(wait_s)
        return agree(*words, wait_s=wait_s, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreAgreement, "agree", noted)
        return saved_in_turn(folder), [wait_s for wait_s in waits_s if wait_s is not None]


def saved_in_turn(folder):
    run = Run(folder)
    calls = []
    run.accelerator.register_save_state_pre_hook(lambda models, weights, path: calls.append(len(weights)))
    shown = []
    for blocking in (True, True, False, True):
        run.step()
        if run.accelerator.is_main_process:
            saved, told = messages_of(lambda: run.accelerator.save_state(blocking=blocking))  # noqa: B023
            shown += told
            if not blocking:
                saved.wait()
    run.step()
    with waiting(LIMIT_S):  # on a busy machine, the others may be late
        path, told = messages_of(run.accelerator.save_state)
    gathered = run.gathered_ranks()
    return run.weights(), path, shown, told, len(calls), gathered


def load_newest(folder):
    run = Run(folder, seed=7)
    run.accelerator.load_state()
    return run.weights(), torch.rand(1).item()


def load_one(folder):
    run = Run(seed=7)
    run.accelerator.load_state(folder, verify=True)
    drawn = torch.rand(1).item()
    return run.weights(), drawn, run.gathered_ranks()


def test_the_main_process_saves_a_replicated_model_without_others(world, tmp_path):
    outcomes, (waits_s, *_) = zip(*world(3).run(save_in_turn, str(tmp_path)), strict=True)
    weights, _, shown, told, num_hooks, _ = outcomes[0]
    folder = tmp_path / "checkpoints"
    assert {outcome[1] for outcome in outcomes} == {str(folder / "checkpoint_4")}
    assert [outcome[-1] for outcome in outcomes] == [[0, 1, 2]] * 3
    # It warns once, and waits once.
    assert len(shown) == 1
    assert "Ranks 1, 2 did not call `save_state` in time, so the main process saves" in shown[0]
    assert "move it out of `if accelerator.is_main_process`" in shown[0]
    assert told == []
    assert num_hooks == 5
    assert waits_s[0] > 4
    assert waits_s[1:4] == [0, 0, 0]
    # Retention counts all of them; the save that all ranks make is complete.
    assert sorted(os.listdir(folder)) == ["checkpoint_3", "checkpoint_4"]
    assert states_in(folder / "checkpoint_3") == ["random_states_0.pkl"]
    assert len(states_in(folder / "checkpoint_4")) == 3
    assert [one[0] for one in world(3).run(load_newest, str(tmp_path))] == [weights] * 3
    # The random states of the others are no reason not to load it, on as many ranks or on fewer.
    for size in (3, 2):
        loaded = world(size).run(load_one, str(folder / "checkpoint_3"))
        assert len({str(one[0]) for one in loaded}) == 1
        assert loaded[0][0] != weights  # of a step earlier
        assert len({one[1] for one in loaded}) == size  # each rank draws other numbers


def come_late(folder):
    run = Run()
    run.step()
    if run.rank == 1:
        wait_for(f"{folder}/a/accel_checkpoint.json")
    with waiting(1):
        path, told = messages_of(lambda: run.accelerator.save_state(f"{folder}/a"))
    run.step()
    second, told_again = messages_of(lambda: run.accelerator.save_state(f"{folder}/b", blocking=False))
    second.wait()
    return path, told, told_again, run.gathered_ranks()


def test_a_rank_that_comes_late_is_reported_and_stays_in_step(world, tmp_path):
    (path, told, again, gathered), (late_path, late_told, late_again, _) = world(2).run(
        come_late, str(tmp_path)
    )
    assert path == late_path == str(tmp_path / "a")
    assert "Rank 1 did not call `save_state` in time, so the main process saves" in told[0]
    assert late_told == told
    assert again == late_again == []
    assert gathered == [0, 1]
    assert states_in(tmp_path / "a") == ["random_states_0.pkl"]
    assert len(states_in(tmp_path / "b")) == 2


def save_a_stream(folder, *, resume):
    settings = DataLoaderConfiguration(dispatch_batches=False)
    run = Run(own_parts=True, dataloader_config=settings)
    if resume:
        run.accelerator.load_state(folder, restore_loaders=True)
        return [batch.tolist() for batch in run.loader]
    for step, _ in enumerate(run.loader):
        if step == 1:
            with waiting(1):
                if run.accelerator.is_main_process:
                    run.accelerator.save_state(folder)
            break
    return None


@pytest.mark.filterwarnings("ignore")
def test_ranks_whose_position_was_not_saved_begin_the_epoch_together(world, tmp_path):
    world(2).run(save_a_stream, str(tmp_path / "a"), resume=False)
    first, second = world(2).run(save_a_stream, str(tmp_path / "a"), resume=True)
    assert len(first) == len(second) == 6
    assert (first[0], second[0]) == ([0, 2], [1, 3])


def save_sharded_on_main_process(folder):
    run = Run(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    current_runtime().debug = True
    raised = []
    for action in (
        lambda: run.accelerator.save_state(f"{folder}/a"),
        lambda: run.accelerator.save_model(run.model, f"{folder}/b"),
    ):
        if run.rank == 0:
            with pytest.raises(CheckpointError) as caught, waiting(1):
                action()
            Path(folder, f"raised-{len(raised)}").touch()
        else:
            wait_for(f"{folder}/raised-{len(raised)}")
            with pytest.raises(CheckpointError) as caught:
                action()  # too late: it must not wait for rank 0
        raised.append(str(caught.value))
    run.step()
    run.accelerator.save_state(f"{folder}/c")
    return raised, run.gathered_ranks()


def test_a_sharded_save_on_the_main_process_only_is_an_error_on_every_rank(world, tmp_path):
    (raised, gathered), (raised_late, _) = world(2).run(save_sharded_on_main_process, str(tmp_path))
    assert raised == raised_late
    for name, message in zip(("save_state", "save_model"), raised, strict=True):
        assert f"Rank 1 did not call `{name}` in time" in message
        assert "Every rank must call it" in message
        assert "move it out of `if accelerator.is_main_process`" in message
    assert gathered == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["c"]


def save_weights_on_main_process(folder):
    run = Run()
    begun_s = time.monotonic()
    if run.accelerator.is_main_process:
        run.accelerator.save_model(run.model, folder)
    return run.gathered_ranks(), time.monotonic() - begun_s


def test_weights_of_a_replicated_model_are_saved_without_waiting(world, tmp_path):
    outcomes = world(2).run(save_weights_on_main_process, str(tmp_path))
    assert [gathered for gathered, _ in outcomes] == [[0, 1]] * 2
    assert max(seconds for _, seconds in outcomes) < 4
    assert (tmp_path / "model.safetensors").is_file()


def save_over_a_number(folder):
    run = Run(folder)
    run.accelerator.save_state()
    run.accelerator.project_configuration.iteration = 0
    with pytest.raises(ConfigError, match=r"checkpoint_0` exists"):
        run.accelerator.save_state()
    return run.gathered_ranks()


def test_a_number_that_is_taken_is_an_error_on_every_rank(world, tmp_path):
    assert world(2).run(save_over_a_number, str(tmp_path)) == [[0, 1]] * 2


OUTLIVES_RANK_0 = """
import os, sys, time
from pathlib import Path
from torch import nn
from accel import Accelerator
from accel_checkpoint.ranks.heartbeat import Heartbeat

Heartbeat.__init__.__kwdefaults__["beat_s"] = 0.1
folder, ends_training = Path(sys.argv[1]), sys.argv[2] == "ends"
accelerator = Accelerator(cpu=True)
accelerator.prepare(nn.Linear(2, 2))
handle = accelerator.save_state(folder / "a", blocking=False)  # held until the end
handle.wait()
if ends_training:
    accelerator.end_training()
rank_0 = folder / "rank_0"
if accelerator.process_index == 0:
    rank_0.write_text(str(os.getpid()))
else:
    while not rank_0.exists() or not rank_0.read_text() or Path("/proc", rank_0.read_text(), "cmdline").read_bytes():
        time.sleep(0.01)
    time.sleep(1)  # the time of some heartbeats
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks a process up in /proc")
@pytest.mark.parametrize("end", ["ends", "just stops"])
def test_a_rank_that_outlives_rank_0_after_a_save_prints_nothing(tmp_path, end):
    (tmp_path / "script.py").write_text(OUTLIVES_RANK_0)
    with start_ranks([tmp_path / "script.py", tmp_path, end], 2, preload=("accel",)) as ranks:
        assert [rank.process.wait(timeout=60) for rank in ranks] == [0, 0]
        assert "Broken pipe" not in ranks[1].stderr
        assert "sendBytes" not in ranks[1].stderr


def load_what_rank_0_still_saves(folder):
    run = Run()

    def hook(models, weights, path):
        (folder / "alone").touch()
        wait_for(folder / "loading")

    with waiting(0.05):
        if run.rank == 0:
            run.accelerator.register_save_state_pre_hook(hook)
        else:
            wait_for(folder / "alone")
        _, shown = messages_of(lambda: run.accelerator.save_state(folder / "a"))
    assert any("saves" in message and "alone" in message for message in shown)
    (folder / "loading").touch()
    run.accelerator.load_state(folder / "a")
    return run.weights()


def test_a_rank_that_comes_late_to_a_save_loads_the_checkpoint_when_it_is_there(world, tmp_path):
    one, other = world(2).run(load_what_rank_0_still_saves, tmp_path)
    assert one == other
