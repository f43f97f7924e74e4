"""Checkpoints of runs whose ranks share one model: any number of ranks reads them, in any layout and strategy."""

from copy import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import StateDictType
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.checkpoints.runs import saved_formats
from accel.utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer
from accel_backends.checkpoint_formats.protocol import FORMATS
from accel_backends.fsdp.state import HeldTensor, full_tensor
from accel_backends.unwrap import stepped_optimizer
from accel_bigmodel import load_checkpoint_in_model
from accel_checkpoint.merging import merge_fsdp_weights
from accel_state.errors import CheckpointError
from tools.harness.models import make_batches, make_model
from tools.harness.scripts import run_script


class Run:
    """One run: a model of small odd parts, its optimizer and scheduler, and a loader of the same batches."""

    def __init__(self, how, *, kind="tied", seed=7, precision="no", layout=None, accumulate=1):
        plugin = None
        if how != "ddp":
            plugin = FullyShardedDataParallelPlugin(2, state_dict_type=f"{how.upper()}_STATE_DICT")
        self.accelerator = Accelerator(
            cpu=True,
            fsdp_plugin=plugin,
            mixed_precision=precision,
            parallelism_config=ParallelismConfig(**layout) if layout else None,
            gradient_accumulation_steps=accumulate,
        )
        model = make_model(kind, seed=seed)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [{"params": trained[:2], "lr": 0.02}, {"params": trained[2:]}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)

    def step(self, num=2):
        for rows in make_batches(num):
            with self.accelerator.accumulate(self.model):
                self.accelerator.forward_backward(
                    self.model, rows, lambda model, rows: model(rows).square().mean()
                )
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()

    def state(self):
        """Return everything that a checkpoint must carry over, in full, on every rank."""
        strategy = self.accelerator.strategy
        model = strategy.model_tensors(self.accelerator.unwrap_model(self.model))
        optimizer = strategy.optimizer_tensors(stepped_optimizer(self.optimizer))
        for group in optimizer["param_groups"]:
            group["params"] = list(group["params"])
        return {
            "model": whole(model),
            "optimizer": whole(optimizer),
            "scheduler": self.scheduler.state_dict(),
            "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
        }


def whole(value):
    if isinstance(value, HeldTensor):
        value = value.fetch()
    if isinstance(value, DTensor):
        value = full_tensor(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    return [whole(inner) for inner in value] if isinstance(value, list) else value


def save(how, folder, options=None, blocking=True):
    run = Run(how, **(options or {}))
    run.step()
    handle = run.accelerator.save_state(folder, blocking=blocking)
    state = run.state()
    if not blocking:
        run.step(1)
        handle.wait()
    run.step()
    return state, run.state()


def save_in_inference_mode(how, folder):
    run = Run(how)
    run.step()
    state = run.state()
    with torch.inference_mode():
        run.accelerator.save_state(folder)
        run.accelerator.save_model(run.model, f"{folder}-weights")
        weights = run.accelerator.get_state_dict(run.model)
    run.step()
    return state, weights


def load(how, folder, options=None, run_before=False):
    run = Run(how, seed=99, **(options or {}))
    if run_before:
        run.step(1)
    run.accelerator.load_state(folder, verify=True)
    state = run.state()
    run.step()
    return state, run.state()


def assert_same(ours, theirs, path=""):
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), path
        for name in theirs:
            assert_same(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), path
        for index, value in enumerate(theirs):
            assert_same(ours[index], value, f"{path}.{index}")
    elif isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs), path
    else:
        assert ours == theirs, path


TYPES = ["full", "sharded"]


@pytest.mark.parametrize("how", TYPES)
def test_shards_are_saved_in_inference_mode_too(world, tmp_path, how):
    [(state, weights), _] = world(2).run(save_in_inference_mode, how, tmp_path / "a")
    [(loaded, _), _] = world(2).run(load, how, tmp_path / "a")
    assert_same(loaded, state)
    assert_same(dict(weights), state["model"])
    written = load_file(tmp_path / "a-weights" / "model.safetensors")
    assert written
    assert all(torch.equal(value, state["model"][name]) for name, value in written.items())


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("full", "tied"),
        ("sharded", "adapted"),
    ],
)
def test_a_run_continues_bit_for_bit(world, tmp_path, how, kind):
    saved = world(2).run(save, how, tmp_path / "a", {"kind": kind})
    for rank, (state, later) in enumerate(world(2).run(load, how, tmp_path / "a", {"kind": kind})):
        assert_same(state, saved[rank][0])
        assert_same(later, saved[rank][1])


@pytest.mark.parametrize("how", TYPES)
def test_any_number_of_ranks_and_any_strategy_reads_it(world, tmp_path, how):
    [(state, _), _] = world(2).run(save, how, tmp_path / "a")
    for num, other in [(1, "ddp"), (3, "full")]:
        for loaded, _ in world(num).run(load, other, tmp_path / "a"):
            assert_same(loaded, state)


def test_flattened_parameters_of_each_rank_are_refused_by_name(fresh_state, tmp_path):
    (tmp_path / "pytorch_model_fsdp_rank0.bin").touch()
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(make_model("odd"))
    form = FORMATS.get("full")()
    reason = "`pytorch_model_fsdp_rank0.bin` was saved with `LOCAL_STATE_DICT`.* Load it with accel 0.2.0"
    with pytest.raises(CheckpointError, match=reason):
        load_fsdp_model(None, accelerator, model, tmp_path)
    with pytest.raises(CheckpointError, match=reason):
        saved_formats(["pytorch_model_fsdp_rank0.bin"], form=form, num_models=1, num_optimizers=0)


def test_ranks_without_a_part_of_some_tensors_write_and_read(world, tmp_path):
    num_writers, num_readers = 3, 2
    options = {"kind": "odd"}  # its last layer has one row
    [(state, _), *_] = world(num_writers).run(save, "sharded", tmp_path / "a", options)
    layout = {"layout": {"dp_shard_size": num_readers}}
    for loaded, _ in world(num_readers).run(load, "sharded", tmp_path / "a", options | layout):
        assert_same(loaded, state)


@pytest.mark.parametrize("num", [1, 2])
def test_what_full_models_wrote_loads_into_shards(world, tmp_path, num):
    [(state, _), *_] = world(num).run(save, "ddp", tmp_path / "a")
    for loaded, _ in world(2).run(load, "sharded", tmp_path / "a"):
        assert_same(loaded, state)


def test_copies_of_shards_are_written_once(world, tmp_path):
    hybrid = {"layout": {"dp_replicate_size": 2, "dp_shard_size": 2}}
    [(state, _), *_] = world(4).run(save, "sharded", tmp_path / "a", hybrid)
    for loaded, _ in world(2).run(load, "full", tmp_path / "a"):
        assert_same(loaded, state)
    [(state, _), *_] = world(2).run(save, "sharded", tmp_path / "b")
    for loaded, _ in world(4).run(load, "full", tmp_path / "b", hybrid):
        assert_same(loaded, state)


SHARED = {"kind": "shared-packed"}
LAYERS = SHARED | {"layout": {"tp_size": 2}}
BOTH = SHARED | {"layout": {"tp_size": 2, "dp_shard_size": 2}}


def test_layers_that_ranks_share_are_read_in_any_layout_and_back(world, tmp_path):
    [(state, later), _] = world(2).run(save, "full", tmp_path / "layers", LAYERS)
    for loaded, on in world(2).run(load, "full", tmp_path / "layers", LAYERS):
        assert_same(loaded, state)
        assert_same(on, later)
    [(both, _), *_] = world(4).run(save, "sharded", tmp_path / "both", BOTH, False)
    for name, expected, num, how, options in [
        ("layers", state, 4, "sharded", BOTH),
        ("layers", state, 1, "ddp", SHARED),
        ("both", both, 2, "sharded", SHARED),
    ]:
        for loaded, _ in world(num).run(load, how, tmp_path / name, options):
            assert_same(loaded, expected)


def pass_on(how, layout, source, target):
    """Load what the layout before has written, or make two steps; and save."""
    run = Run(how, kind="shared-tied", seed=99, layout=layout)
    if source is None:
        run.step()
    else:
        run.accelerator.load_state(source, verify=True)
    run.accelerator.save_state(target)
    return torch.rand(3), run.state()


def test_a_checkpoint_goes_through_every_kind_of_layout_without_a_difference(world, tmp_path):
    """TP ranks draw the random numbers of one process; other layouts draw new ones."""
    [(numbers, state), _] = world(2).run(pass_on, "sharded", {"tp_size": 2}, None, tmp_path / "0")
    chain = [(2, "sharded", None), (2, "full", {"pp_size": 2}), (1, "ddp", None)]
    for number, (num, how, layout) in enumerate(chain):
        folders = tmp_path / str(number), tmp_path / str(number + 1)
        for _, passed_on in world(num).run(pass_on, how, layout, *folders):
            assert_same(passed_on, state)
    [(again, _)] = world(1).run(pass_on, "ddp", None, tmp_path / "0", tmp_path / "alone")
    assert torch.equal(again, numbers)


STAGES = {"kind": "shared-tied", "layout": {"pp_size": 2}}
SHARDED_STAGES = {"kind": "shared-tied", "layout": {"pp_size": 2, "dp_shard_size": 2}}


def test_stages_are_saved_in_parts_and_read_in_any_layout_and_back(world, tmp_path):
    """The embedding is held by both stages, and written by the first."""
    [(two, later), _] = world(2).run(save, "sharded", tmp_path / "two", STAGES)
    [(four, _), *_] = world(4).run(save, "sharded", tmp_path / "four", SHARDED_STAGES, False)
    for name, num in [("two", 2), ("four", 4)]:
        parts = sorted(file.name for file in (tmp_path / name / "pytorch_model_fsdp_0").glob("*.distcp"))
        assert parts == [f"__{rank}_0.distcp" for rank in range(num)]
    for before in (False, True):  # the full model, or the stage alone
        for loaded, on in world(2).run(load, "sharded", tmp_path / "two", STAGES, before):
            assert_same(loaded, two)
            assert_same(on, later)
    plain = {"kind": "shared-tied"}
    for name, expected, num, how, options in [
        ("two", two, 4, "full", SHARDED_STAGES),
        ("four", four, 1, "ddp", plain),
        ("four", four, 2, "sharded", {**plain, "layout": {"tp_size": 2}}),
    ]:
        for loaded, _ in world(num).run(load, how, tmp_path / name, options, "layout" in options):
            assert_same(loaded, expected)


def spread(num):
    return {"kind": "mixture", "layout": {"dp_shard_size": num, "ep_size": 2}}


def test_experts_that_are_distributed_are_read_in_any_layout_and_back(world, tmp_path):
    [(state, later), _] = world(2).run(save, "full", tmp_path / "two", spread(2))
    for loaded, on in world(2).run(load, "full", tmp_path / "two", spread(2)):
        assert_same(loaded, state)
        assert_same(on, later)
    [(other, _), *_] = world(4).run(save, "sharded", tmp_path / "four", spread(4), False)
    for name, expected, num, how, options in [
        ("two", state, 1, "ddp", {"kind": "mixture"}),
        ("four", other, 1, "ddp", {"kind": "mixture"}),
        ("four", other, 2, "full", spread(2)),
    ]:
        for loaded, _ in world(num).run(load, how, tmp_path / name, options):
            assert_same(loaded, expected)


@pytest.mark.parametrize("how", TYPES)
def test_a_save_behind_the_loop_has_the_state_of_its_beginning(world, tmp_path, how):
    [(state, _), _] = world(2).run(save, how, tmp_path / "a", None, False)
    for loaded, _ in world(2).run(load, how, tmp_path / "a"):
        assert_same(loaded, state)


def save_within_accumulation(folder, how, options):
    run = Run(how, accumulate=3, **options)
    run.step(4)
    run.accelerator.save_state(folder)
    run.step(2)
    return run.state()


def load_within_accumulation(folder, how, options):
    run = Run(how, seed=99, accumulate=3, **options)
    run.accelerator.load_state(folder)
    run.accelerator.save_state(folder.with_name("again"))  # as when it is asked to end at once
    run.step(2)
    return run.state()


@pytest.mark.parametrize(
    ("num", "how", "options"),
    [
        (3, "ddp", {}),
        (3, "sharded", {}),
        (2, "full", LAYERS),
        (2, "sharded", spread(2)),
        (2, "ddp", STAGES),
        (4, "sharded", SHARDED_STAGES),
    ],
    ids=["ddp", "sharded", "layers", "experts", "stages", "sharded stages"],
)
def test_gradients_of_an_accumulation_are_kept(world, tmp_path, num, how, options):
    """Also by a run that saves before its first batch, which shows what each rank of a pipeline has."""
    expected = world(num).run(save_within_accumulation, tmp_path / "a", how, options)
    for name in ("a", "again"):
        assert_same(world(num).run(load_within_accumulation, tmp_path / name, how, options), expected)


def evaluate_first(folder):
    run = Run("ddp", seed=99, accumulate=3, **STAGES)
    run.accelerator.load_state(folder)
    with torch.no_grad():
        run.accelerator.forward_backward(
            run.model, make_batches(1)[0], lambda model, rows: model(rows).square().mean()
        )
    run.step(2)
    return run.state()


def test_gradients_that_wait_for_the_first_batch_of_a_pipeline_outlive_an_evaluation(world, tmp_path):
    expected = world(2).run(save_within_accumulation, tmp_path / "a", "ddp", STAGES)
    assert_same(world(2).run(evaluate_first, tmp_path / "a"), expected)


def save_within_accumulation_of_copies(folder):
    run = Run("sharded", accumulate=3, layout={"dp_replicate_size": 2})
    run.step(4)
    with pytest.raises(CheckpointError, match="within an accumulation.*would be lost"):
        run.accelerator.save_state(folder)
    run.step(2)
    run.accelerator.save_state(folder)


def test_gradients_that_are_not_reduced_yet_are_not_lost_in_silence(world, tmp_path):
    world(2).run(save_within_accumulation_of_copies, tmp_path / "a")
    assert (tmp_path / "a" / "accel_checkpoint.json").is_file()


def save_with_a_hook_on_the_main_process(how, folder):
    run = Run(how)
    second = torch.nn.Linear(3, 2)
    second = run.accelerator.prepare(second)

    def hook(models, weights, folder):
        (Path(folder) / "by_hand.txt").write_text("the first model")
        weights.pop(0)

    if run.accelerator.is_main_process:
        run.accelerator.register_save_state_pre_hook(hook)
    run.accelerator.register_load_state_pre_hook(lambda models, folder: models.pop(0))
    run.accelerator.save_state(folder)
    before = dict(run.accelerator.get_state_dict(second))
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    run.accelerator.load_state(folder)
    assert_same(dict(run.accelerator.get_state_dict(second)), before)


@pytest.mark.parametrize("how", TYPES)
def test_a_hook_may_take_weights_on_the_main_process_only(world, tmp_path, how):
    world(3).run(save_with_a_hook_on_the_main_process, how, tmp_path / "a")
    assert (tmp_path / "a" / "by_hand.txt").is_file()


LONG_NAMES = """
import sys
import torch
from accel import Accelerator, FullyShardedDataParallelPlugin

class LongNames(torch.nn.Module):  # as many bytes of names as a model of tens of thousands of parameters
    def __init__(self):
        super().__init__()
        for number in range(24):
            parameter = torch.nn.Parameter(torch.full((3,), float(number)))
            self.register_parameter(str(number) + 400_000 * "n", parameter)

plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
model = accelerator.prepare(LongNames())
accelerator.save_state(sys.argv[1])
ones = accelerator.gather(torch.ones(1))  # the store still answers
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
accelerator.load_state(sys.argv[1])
sums = [value.sum().item() for value in accelerator.get_state_dict(model).values()]
if accelerator.is_main_process:
    print(ones.tolist() == [1, 1, 1], sums == [3.0 * number for number in range(24)])
accelerator.end_training()
"""


def test_the_names_of_a_large_model_do_not_have_to_fit_into_the_store(tmp_path):
    (tmp_path / "script.py").write_text(LONG_NAMES)
    ended = run_script(tmp_path / "script.py", str(tmp_path / "a"), num_processes=3, preload=("accel",))
    assert (ended.returncode, ended.stdout) == (0, "True True\n"), ended.stderr
    assert not list((tmp_path / "a").glob("*/*.note"))


def fail_to_save(folder):
    run = Run("sharded")
    if run.accelerator.process_index == 1:
        run.accelerator.register_save_state_pre_hook(lambda models, weights, folder: 1 / 0)
    with pytest.raises(CheckpointError, match="was not saved .*rank 1: ZeroDivisionError"):
        run.accelerator.save_state(folder)


def test_a_rank_that_cannot_save_is_named_on_all_ranks(world, tmp_path):
    world(2).run(fail_to_save, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def save_without_rank_1(folder):
    run = Run("sharded")
    run.accelerator.save_state(folder / "a")
    if run.accelerator.process_index == 0:
        run.accelerator._checkpointer._saver.agreement.deadline_s = 0.2
        with pytest.raises(CheckpointError, match="Rank 1 did not call `save_state` in time"):
            run.accelerator.save_state(folder / "b")
    run.accelerator.wait_for_everyone()  # until then rank 1 lives, and only does not save
    run.step(1)  # no collective of the save is left over


def test_a_rank_that_never_comes_to_a_save_is_named_after_the_deadline(world, tmp_path):
    world(2).run(save_without_rank_1, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def load_into(folder, kind):
    run = Run("sharded", kind=kind)
    before = run.state()
    try:
        run.accelerator.load_state(folder)
    except CheckpointError as error:
        assert_same(run.state(), before)
        return str(error)


def test_the_checkpoint_of_another_model_changes_nothing_and_names_what_differs(world, tmp_path):
    for how in TYPES:
        world(2).run(save, how, tmp_path / how)
        for message in world(2).run(load_into, tmp_path / how, "buffered"):
            assert (
                "does not fit model 0 (Buffered): it lacks `scale`, `mix`, `count`; it has `embed.weight`"
                in message
            )
            assert "`blocks.0.norm.weight` has the shape (10,) instead of (9,)" in message


def export(folder):
    run = Run("sharded")
    run.step()
    run.accelerator.save_state(folder / "state")
    for safe in (True, False):
        run.accelerator.save_model(
            run.model, folder / f"model {safe}", max_shard_size="2KB", safe_serialization=safe
        )
    plugin = run.accelerator.state.fsdp_plugin
    save_fsdp_model(plugin, run.accelerator, run.model, folder / "parts")
    save_fsdp_optimizer(plugin, run.accelerator, run.optimizer, run.model, folder / "parts")
    plugin = copy(plugin)
    plugin.state_dict_type = StateDictType.FULL_STATE_DICT
    save_fsdp_model(plugin, run.accelerator, run.model, folder / "whole", adapter_only=True)
    save_fsdp_optimizer(plugin, run.accelerator, run.optimizer, run.model, folder / "whole")
    states = [run.state()]
    for name in ("parts", "whole"):
        other = Run("sharded", seed=99)
        load_fsdp_model(plugin, other.accelerator, other.model, folder / name, adapter_only=True)
        load_fsdp_optimizer(plugin, other.accelerator, other.optimizer, other.model, folder / name)
        states.append(other.state() | {"scheduler": states[0]["scheduler"]})
    return states, run.accelerator.get_state_dict(run.model)


def test_all_exports_of_a_sharded_run_lead_to_the_same_weights(world, tmp_path):
    (states, whole_state), (others, nothing) = world(2).run(export, tmp_path)
    for state in (*states, *others):
        assert_same(state, states[0])
    assert nothing == {}
    assert_same(dict(whole_state), states[0]["model"])
    for safe, name in ((True, "model.safetensors.index.json"), (False, "pytorch_model.bin.index.json")):
        model = make_model("tied", seed=1)
        load_checkpoint_in_model(model, tmp_path / f"model {safe}" / name)
        assert_same(dict(model.state_dict()), states[0]["model"])
    for safe, name in ((True, "model.safetensors"), (False, "pytorch_model.bin")):
        folder = tmp_path / f"merged {safe}"
        merge_fsdp_weights(tmp_path / "state" / "pytorch_model_fsdp_0", folder, safe_serialization=safe)
        model = make_model("tied", seed=1)
        load_checkpoint_in_model(model, folder / name)
        assert_same(dict(model.state_dict()), states[0]["model"])
    assert sorted(load_file(tmp_path / "merged True" / "model.safetensors")) == sorted(
        set(whole_state) - {"head.weight"}
    )
