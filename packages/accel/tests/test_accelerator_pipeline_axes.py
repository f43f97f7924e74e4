"""Stages with CP, SP or EP train as one process does."""

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader

from accel import Accelerator, ParallelismConfig
from accel.utils import FullyShardedDataParallelPlugin
from accel_state import PipelineParallelConfig, TorchContextParallelConfig
from accel_state.mesh_layout import DATA_AXES
from accel_state.runtime import reset_runtime
from tools.harness.models import Tokens, make_batches, make_model

LENGTH, RATE, CLIP = 12, 0.5, 0.5


def samples():
    """Return eight sequences with padding on either side, and other numbers of labels in each half."""
    ids = torch.randint(1, 19, (8, LENGTH), generator=torch.Generator().manual_seed(1))
    mask, labels = torch.ones_like(ids), ids.clone()
    for row in range(8):
        padding = slice(0, row % 4) if row % 2 else slice(LENGTH - row % 4, None)
        mask[row, padding] = 0
        labels[row, padding] = labels[row, : 2 + row % 3] = -100
    return [
        {"input_ids": one, "attention_mask": seen, "labels": label}
        for one, seen, label in zip(ids, mask, labels, strict=True)
    ]


def whole_for_one(batch):
    ids = batch["input_ids"]
    return {
        "input_ids": ids,
        "attention_mask": batch["attention_mask"],
        "position_ids": torch.arange(ids.shape[1]).expand(len(ids), -1),
        "shift_labels": pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous(),
    }


def num_labels(batch):
    return (batch["shift_labels"] != -100).sum()


def loss_of_labels(model, batch):
    inputs = {name: value for name, value in batch.items() if name != "shift_labels"}
    logits, labels = model(**inputs), batch["shift_labels"]
    assert logits.shape[:2] == labels.shape
    summed = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return summed / num_labels(batch).clamp(min=1)


def whole_gradients(model):
    return {
        name.replace("_checkpoint_wrapped_module.", ""): (
            one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
        ).clone()
        for name, one in model.named_parameters()
        if one.grad is not None
    }


def make_accelerator(layout, *, schedule="1f1b", plugin=None, **options):
    reset_runtime(keep_process_group=True)
    config = ParallelismConfig(
        **layout,
        sp_backend="torch",
        pp_handler=PipelineParallelConfig(schedule, 2) if "pp_size" in layout else None,
        cp_handler=TorchContextParallelConfig(cuts_batches=True) if "cp_size" in layout else None,
    )
    return Accelerator(
        cpu=True,
        parallelism_config=config,
        fsdp_plugin=plugin and FullyShardedDataParallelPlugin(fsdp_version=2, **plugin),
        **options,
    )


def train_on_shared_sequences(layout, plugin=None):
    """Train on two batches for each step, and return the losses, norms and last gradients, and the state."""
    accelerator = make_accelerator(layout, plugin=plugin, gradient_accumulation_steps=2)
    model = make_model("tokens")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(samples(), batch_size=2))
    losses, norms, gradients = [], [], {}
    for batch in loader:
        if not layout:
            batch = whole_for_one(batch)
        with accelerator.accumulate(model):
            num = num_labels(batch)
            loss = accelerator.forward_backward(model, batch, loss_of_labels, num_labels)
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), CLIP).item())
                gradients = whole_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
        losses.append((loss.item(), num.item()))
    return losses, norms, gradients, accelerator.get_state_dict(model)


def kept_in_stages():
    """Return which values dropout keeps in the block of this stage, of the same tokens in both micro-batches."""
    accelerator = make_accelerator({"pp_size": 2, "cp_size": 2})
    model = Tokens(dropout=0.5)
    model, loader = accelerator.prepare(model, DataLoader(samples(), batch_size=2))
    kept = []
    for block in model.blocks:
        block.rows.dropout.register_forward_hook(lambda _, inputs, output: kept.append(output))
    accelerator.forward_backward(model, next(iter(loader)), loss_of_labels)
    return [one.detach() != 0 for one in kept if type(one) is torch.Tensor], torch.rand(4)


def test_ranks_of_a_stage_with_other_tokens_drop_out_others(world):
    each = world(4).run(kept_in_stages)
    assert all(drawn.equal(each[0][1]) for _, drawn in each)
    for (one, _), (other, _) in zip(each[::2], each[1::2], strict=True):
        assert len(one) == len(other) == 2  # micro-batches
        assert all(0.3 < (this == that).double().mean() < 0.7 for this, that in zip(one, other, strict=True))


SHARED = [
    ({"pp_size": 2, "cp_size": 2}, None),
    ({"pp_size": 2, "sp_size": 2}, {"activation_checkpointing": True}),
]


def train_on_all():
    return [train_on_shared_sequences(*row) for row in SHARED]


def check_like_one(each, alone):
    """Compare what all ranks found with what one process did."""
    _, norms, gradients, state = alone
    for _, own_norms, own_gradients, _ in each:
        assert own_norms == each[0][1] == pytest.approx(norms, rel=1e-5)
        assert own_gradients
        for name, value in own_gradients.items():
            torch.testing.assert_close(value, gradients[name], rtol=1e-5, atol=1e-6, msg=name)
    assert {name for own in each for name in own[2]} == set(gradients)
    # Each step is the rate times the gradient.
    torch.testing.assert_close(each[0][3], dict(state), rtol=1e-5, atol=1e-6)


def test_stages_with_cp_or_sp_train_like_one_process(world):
    [alone] = world(1).run(train_on_shared_sequences, {})
    for found in zip(*world(4).run(train_on_all), strict=True):
        check_like_one(found, alone)
        # The ranks of a stage have other parts of the labels; both stages know the loss of theirs.
        for step, (loss, num) in enumerate(alone[0]):
            parts = [own[0][step] for own in found]
            assert parts[:2] == parts[2:]
            assert sum(count for _, count in parts[:2]) == num
            assert parts[0][1] != parts[1][1]
            assert sum(one * count for one, count in parts[:2]) / num == pytest.approx(loss, rel=1e-6)


def loss_of_rows(model, rows):
    return model(rows).square().mean()


def train_experts(kind, layout, schedule="1f1b"):
    accelerator = make_accelerator(layout, schedule=schedule)
    model = make_model(kind)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    config = accelerator.parallelism_config.layout
    own = config.index(accelerator.process_index, *DATA_AXES)
    losses, norms, gradients = [], [], {}
    for rows in make_batches(2, rows=8):
        rows = rows[own :: config.num_data_ranks]
        losses.append(accelerator.forward_backward(model, rows, loss_of_rows).item())
        norms.append(accelerator.clip_grad_norm_(model.parameters(), CLIP).item())
        gradients = whole_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, gradients, accelerator.get_state_dict(model)


EXPERTS = [("mixture", "1f1b"), ("mixture", "zero_bubble"), ("mixture", "interleaved_1f1b")]


def train_all_experts():
    return [train_experts(kind, {"pp_size": 2, "ep_size": 2}, schedule) for kind, schedule in EXPERTS]


def test_stages_with_ep_train_like_one_process(world):
    each = list(zip(*world(4).run(train_all_experts), strict=True))
    for (kind, _), found in zip(EXPERTS, each, strict=True):
        [alone] = world(1).run(train_experts, kind, {})
        check_like_one(found, alone)
        losses = torch.tensor([own[0] for own in found]).mean(0)
        assert losses.tolist() == pytest.approx(alone[0], rel=1e-6)
