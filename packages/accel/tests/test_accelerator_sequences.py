"""CP and SP ranks must train as one process does that has full sequences."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.utils import set_seed
from accel_state import TorchContextParallelConfig
from accel_state.errors import ConfigError, StateError
from accel_state.runtime import reset_runtime
from tools.harness.device import on_cpu
from tools.harness.models import SharedSequence, Tokens, make_model

CLIP, RATE = 0.5, 0.5


def samples(length):
    """Return eight sequences with padding on either side, and other numbers of labels in each half."""
    ids = torch.randint(1, 19, (8, length), generator=torch.Generator().manual_seed(1))
    mask, labels = torch.ones_like(ids), ids.clone()
    for row in range(8):
        padding = slice(0, row % 4) if row % 2 else slice(length - row % 4, None)
        mask[row, padding] = 0
        labels[row, padding] = labels[row, : 2 + row % 3] = -100
        labels[row, : row % 4 + 1] = -100
    return [
        {"input_ids": one, "attention_mask": seen, "labels": label}
        for one, seen, label in zip(ids, mask, labels, strict=True)
    ]


def whole_for_block(batch):
    """Return a batch as a user makes it for `maybe_context_parallel`."""
    ids, labels = batch["input_ids"], batch["labels"]
    positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
    shifted = pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    return {
        "input_ids": ids,
        "attention_mask": batch["attention_mask"],
        "position_ids": positions,
        "shift_labels": shifted,
    }


def train_in_ranks(length, layout, settings, *, plugin=None, accumulate=1, rows=2):
    reset_runtime(keep_process_group=True)
    handler = TorchContextParallelConfig(**settings) if "cp_size" in layout else None
    accelerator = Accelerator(
        cpu=on_cpu(),
        parallelism_config=ParallelismConfig(**layout, sp_backend="torch", cp_handler=handler),
        fsdp_plugin=plugin and FullyShardedDataParallelPlugin(fsdp_version=2, **plugin),
        gradient_accumulation_steps=accumulate,
    )
    model = make_model("tokens")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(samples(length), batch_size=rows)
    )
    losses, norms = [], []
    for batch in loader:
        buffers = []
        if not settings.get("cuts_batches"):
            batch = whole_for_block(batch)
            buffers = list(batch.values())
        cutting = accelerator.maybe_context_parallel(
            buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers[1:])
        )
        with cutting if buffers else nullcontext(), accelerator.accumulate(model):
            labels = batch.pop("shift_labels")
            logits = model(**batch)
            assert logits.shape[:2] == labels.shape
            summed = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            num = (labels != -100).sum()
            accelerator.backward(summed / num.clamp(min=1), num_items=num)
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), CLIP).item())
            optimizer.step()
            optimizer.zero_grad()
        losses.append((accelerator.reduce(summed.detach()) / accelerator.reduce(num)).item())
        if buffers:
            assert (batch["input_ids"].shape[1], labels.shape[1]) == (length, length // 2)
    if settings.get("cuts_batches"):
        (last,) = accelerator.skip_first_batches(loader, len(loader) - 1)
        assert last["input_ids"].equal(batch["input_ids"])
    return losses, norms, accelerator.get_state_dict(model)


def train_alone(length, *, rows, accumulate):
    model = make_model("tokens")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = list(DataLoader(samples(length), batch_size=rows))
    losses, norms = [], []
    for start in range(0, len(batches), accumulate):
        window = [whole_for_block(batch) for batch in batches[start : start + accumulate]]
        total = sum((batch["shift_labels"] != -100).sum() for batch in window)
        for batch in window:
            labels = batch.pop("shift_labels")
            summed = cross_entropy(model(**batch).flatten(0, 1), labels.flatten(), reduction="sum")
            (summed / total).backward()
            losses.append((summed.detach() / (labels != -100).sum()).item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, model.state_dict()


CUTTING = {"cuts_batches": True}
AGAIN = {"cuts_batches": True, "cp_comm_strategy": "alltoall"}
ROWS = [
    # length, layout, settings of the handler, further ones
    (12, {"cp_size": 2}, CUTTING, {"accumulate": 2}),
    (12, {"cp_size": 2}, {}, {}),
    (12, {"cp_size": 2}, AGAIN, {"plugin": {"activation_checkpointing": True}}),
    (11, {"cp_size": 2}, {**CUTTING, "is_balanced": False}, {}),
    (12, {"cp_size": 2, "dp_shard_size": 2}, CUTTING, {}),
    (11, {"sp_size": 2}, CUTTING, {"plugin": {"activation_checkpointing": True}, "accumulate": 2}),
    (12, {"sp_size": 2, "dp_shard_size": 2}, CUTTING, {}),
]


def train_all(num_ranks):
    return [
        train_in_ranks(length, layout, settings, **more)
        for length, layout, settings, more in ROWS
        if 2 * layout.get("dp_shard_size", 1) == num_ranks
    ]


@pytest.mark.filterwarnings("ignore:Sequences of 11 tokens")
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_that_share_sequences_train_like_one_process(world, device, num_ranks):
    rtol = 1e-5 if on_cpu() else 1e-4
    each = world(num_ranks).run(train_all, num_ranks)
    rows = [row for row in ROWS if 2 * row[1].get("dp_shard_size", 1) == num_ranks]
    for index, (length, _, _, more) in enumerate(rows):
        losses, norms, state = train_alone(length, rows=num_ranks, accumulate=more.get("accumulate", 1))
        for found in each:
            assert found[index][0] == pytest.approx(losses, rel=rtol / 10)
            assert found[index][1] == each[0][index][1] == pytest.approx(norms, rel=rtol)
        # Each step is the rate times the gradient.
        torch.testing.assert_close(each[0][index][2], dict(state), rtol=rtol, atol=rtol / 10)


def refusals():
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2))
    told = []

    def tell(*kinds, call):
        with pytest.raises(kinds) as caught:
            call()
        told.append(str(caught.value))

    tell(ConfigError, call=lambda: accelerator.prepare_model(make_model("shared")))
    model = accelerator.prepare_model(make_model("tokens"))
    ids, longer = torch.ones(2, 8, dtype=torch.long), torch.ones(2, 16)
    with warnings.catch_warnings(record=True) as warned:
        whole = model(ids), model(ids)
    about_sequences = [
        "`cp_size` is 2, but a model is trained on whole sequences" in str(one.message) for one in warned
    ]
    assert sum(about_sequences) == accelerator.is_main_process
    assert whole[0].shape == (2, 8, 19)
    block = accelerator.maybe_context_parallel
    tell(ConfigError, call=lambda: block([ids], []).__enter__())
    tell(ConfigError, call=lambda: block([ids, longer], [1, 1]).__enter__())
    tell(ConfigError, call=lambda: block([ids[:, :6].clone()], [1]).__enter__())
    with block([ids], [1]):
        assert ids.shape == (2, 4)
        tell(StateError, call=lambda: block([longer], [1]).__enter__())
        tell(ConfigError, call=lambda: model(ids[:, :2], torch.arange(2)[None]))
        as_long = torch.ones(2, 4, dtype=torch.long)
        tell(StateError, call=lambda: model(as_long))
        tell(StateError, call=lambda: model.blocks[0](torch.ones(2, 4, 12)))
        seen = torch.ones(4, 4, dtype=torch.bool)
        model.blocks[0].attention.register_forward_pre_hook(lambda _, args: (args[0], seen))
        tell(ConfigError, call=lambda: model(ids))
    assert ids.shape == (2, 8)
    return told


def test_what_cannot_be_shared_is_refused_with_what_would_do(world):
    for told in world(2).run(refusals):
        no_plan, dims, lengths, indivisible, nested, other, unknown, inside, mask = told
        assert "The Shared has no plan that names its attention modules" in no_plan
        assert "`buffer_seq_dims` has 0 entries for 1 `buffers`" in dims
        assert "sequences of 8, 16 tokens" in lengths
        assert (
            "Sequences of 6 tokens cannot be shared by 2 ranks (`cp_size`). Pad them to a multiple of 4"
            in indivisible
        )
        assert "where sequences are cut already" in nested
        assert "`blocks.0.attention` passes a mask of its own, of shape (4, 4)" in mask
        assert "has 2 queries and 2 keys, but each rank has 4 tokens" in other
        assert "The Tokens was called with tensors that are no part of the batch whose sequences" in unknown
        assert "A module inside of a model was called where sequences are shared (`cp_size`)" in inside


def counted(cuts_batches):
    reset_runtime(keep_process_group=True)
    handler = TorchContextParallelConfig(cuts_batches=cuts_batches)
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2, cp_handler=handler))
    loader = accelerator.prepare(
        DataLoader([{"input_ids": torch.full((4,), row)} for row in range(5)], batch_size=2)
    )
    found = [accelerator.gather_for_metrics(batch["input_ids"][:, 0]) for batch in loader]
    shapes = {batch["input_ids"].shape[1] for batch in accelerator.skip_first_batches(loader, 1)}
    assert shapes == {2 if cuts_batches else 4}
    return torch.cat(found).tolist()


def count_both():
    return [counted(True), counted(False)]


def test_each_sample_counts_once_among_ranks_that_share_it(world):
    assert world(2).run(count_both) == [[list(range(5))] * 2] * 2


def other_sequences_in_the_loop():
    """Compute others as long as a part, a batch made of the part, and parts of two loaders."""
    handler = TorchContextParallelConfig(cuts_batches=True)
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2, cp_handler=handler))
    model, first, second = accelerator.prepare(
        make_model("tokens").eval(), *(DataLoader(samples(length), batch_size=2) for length in (12, 10))
    )
    seen = []
    with torch.no_grad():
        for batch, shorter in zip(first, second, strict=True):
            ids = batch["input_ids"]
            with pytest.raises(StateError, match="outside of the loop or the block"):
                model(input_ids=torch.ones_like(ids))
            other = ids * 1  # computed from the batch
            made = model(input_ids=other, position_ids=batch["position_ids"])
            assert made.equal(model(input_ids=ids, position_ids=batch["position_ids"]))
            seen.append((model(input_ids=ids), model(input_ids=shorter["input_ids"][:1])))
        again = [model(input_ids=batch["input_ids"]) for batch in first]
        assert all(one.equal(both[0]) for one, both in zip(again, seen, strict=True))
        alone = [model(input_ids=batch["input_ids"][:1]) for batch in second]
        assert all(one.equal(both[1]) for one, both in zip(alone, seen, strict=True))


@pytest.mark.filterwarnings("ignore:Sequences of 10 tokens")
def test_sequences_are_known_by_their_tensors_and_not_by_their_length(world):
    world(2).run(other_sequences_in_the_loop)


def kept_by_dropout(layout, folder, *, checkpointed=False):
    """Return which values of a batch are kept, what is drawn after the next one, and the gradients of both.

    The second one is computed again after the state that was saved before it is loaded.
    """
    reset_runtime(keep_process_group=True)
    accelerator = Accelerator(
        cpu=on_cpu(),
        parallelism_config=ParallelismConfig(**layout, sp_backend="torch"),
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=checkpointed),
    )
    set_seed(5, device_specific=True)
    torch.manual_seed(7)
    model = Tokens(dropout=0.5) if {"cp_size", "sp_size"} & layout.keys() else SharedSequence(dropout=0.5)
    kept = []
    for block in model.blocks:
        block.rows.dropout.register_forward_hook(lambda _, inputs, output: kept.append(output.detach() != 0))
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))

    def step():
        kept.clear()
        ids = torch.ones(2, 12, dtype=torch.long)
        with accelerator.maybe_context_parallel([ids], [1], {ids}):
            loss = model(ids if isinstance(model, Tokens) else torch.ones(2, 7)).square().sum()
        in_forward = torch.stack(kept)
        accelerator.backward(loss)
        return in_forward

    first = step()
    accelerator.save_state(folder)
    second, drawn = step(), torch.rand(4)
    accelerator.load_state(folder)
    assert step().equal(second)
    assert torch.rand(4).equal(drawn)
    assert not first.equal(second)
    return first, drawn, [parameter.grad.full_tensor() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("layout", "groups"),
    [
        ({"cp_size": 2}, [[0], [1]]),
        ({"sp_size": 2}, [[0], [1]]),
        ({"tp_size": 2}, [[0], [1]]),  # layers share the tokens between them
        ({"cp_size": 2, "tp_size": 2}, [[0, 1], [2, 3]]),
    ],
)
def test_ranks_with_other_tokens_of_a_sequence_drop_out_others_and_all_draw_alike_after_it(
    world, tmp_path, layout, groups
):
    run = world(sum(map(len, groups))).run
    found = run(kept_by_dropout, layout, tmp_path / "plain")
    assert all(drawn.equal(found[0][1]) for _, drawn, _ in found)
    for group in groups:
        assert all(found[rank][0].equal(found[group[0]][0]) for rank in group)
    one, other = (found[group[0]][0] for group in groups)
    # Of independent masks half of the values agree; no layer and no sequence has the same.
    assert 0.35 < (one == other).double().mean() < 0.65
    assert not (one == other).flatten(2).all(2).any()
    again = run(kept_by_dropout, layout, tmp_path / "checkpointed", checkpointed=True)
    torch.testing.assert_close(again, found, rtol=1e-6, atol=1e-6)
