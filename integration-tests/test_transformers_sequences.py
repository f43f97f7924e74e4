"""Models of transformers whose sequences ranks share: as in one process, or refused with the reason."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad

from accel import Accelerator, ParallelismConfig
from accel_state import TorchContextParallelConfig
from accel_state.errors import ConfigError, StateError
from accel_state.runtime import reset_runtime

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 40, "pad_token_id": 0,
}  # fmt: skip


def make_model(kind, **settings):
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    )
    return model.train()


def batch(*, packed=False):
    """Return full sequences as the Trainer prepares them."""
    ids = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(1))
    mask, labels = torch.ones_like(ids), ids.clone()
    positions = torch.arange(12).repeat(2, 1)
    if packed:
        positions[0, 5:] -= 5
        labels[0, 5] = -100
    else:
        mask[0, :3] = mask[1, -4:] = 0
        labels[0, :4] = labels[1, -4:] = -100
    shifted = pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    found = {"input_ids": ids, "labels": labels, "shift_labels": shifted, "position_ids": positions}
    return found if packed else {**found, "attention_mask": mask}


def gradients(model, inputs, *, num):
    """Return the sum of the losses, and its gradients over ``num`` of them."""
    loss = model(**inputs, use_cache=False, num_items_in_batch=1).loss
    return loss.detach(), loss / num


ROWS = {
    # model, settings, how it is used
    "padding": ("Llama", {}, {}),
    "checkpointing of its own": ("Llama", {}, {"checkpointed": True}),
    "and backward in the block": ("Llama", {}, {"checkpointed": True, "in_block": True}),
    "packed samples": ("Qwen2", {}, {"packed": True}),
    "window in each layer": ("Mistral", {"sliding_window": 4}, {}),
    "window in some layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
        {"again": True},
    ),
}


def in_ranks(kind, settings, *, packed=False, checkpointed=False, in_block=False, again=False):
    reset_runtime(keep_process_group=True)
    handler = TorchContextParallelConfig(cp_comm_strategy="alltoall" if again else "allgather")
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2, cp_handler=handler))
    model = make_model(kind, **settings)
    if checkpointed:
        model.gradient_checkpointing_enable()
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    inputs = batch(packed=packed)
    num = (inputs["shift_labels"] != -100).sum()
    buffers = list(inputs.values())
    with accelerator.maybe_context_parallel(buffers, [1] * len(buffers), set(buffers)):
        total, loss = gradients(model, inputs, num=num)
        if in_block:
            accelerator.backward(loss * 2)  # the mean over two ranks of what are parts of one sum
    if not in_block:
        accelerator.backward(loss * 2)
    found = {
        name.replace("_checkpoint_wrapped_module.", ""): parameter.grad.full_tensor()
        for name, parameter in model.named_parameters()
    }
    return accelerator.reduce(total), found


def all_in_ranks():
    return {name: in_ranks(kind, settings, **use) for name, (kind, settings, use) in ROWS.items()}


def test_sequence_parallel_ranks_compute_what_one_process_does(world):
    each = world(2).run(all_in_ranks)
    for name, (kind, settings, use) in ROWS.items():
        model = make_model(kind, **settings)
        inputs = batch(packed=use.get("packed", False))
        total, loss = gradients(model, inputs, num=(inputs["shift_labels"] != -100).sum())
        loss.backward()
        expected = {of: parameter.grad for of, parameter in model.named_parameters()}
        for found_total, found in (one[name] for one in each):
            torch.testing.assert_close(found_total, total, rtol=1e-6, atol=0, msg=name)
            torch.testing.assert_close(
                found, expected, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize(
    ("axis", "attention"),
    [("cp_size", "flex_attention"), ("sp_size", "flex_attention"), ("cp_size", "eager")],
)
def test_attention_that_ranks_cannot_share_is_refused_by_name(world, axis, attention):
    for told in world(2).run(other_attention, axis, attention):
        for message in told:
            assert (
                f"has the attention `{attention}`, but ranks that share sequences compute only `sdpa`"
                in message
            )
            assert 'Load it with `attn_implementation="sdpa"`' in message


def other_attention(axis, attention):
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**{axis: 2}, sp_backend="torch"))
    with pytest.raises(ConfigError) as at_first:
        accelerator.prepare_model(make_model("Llama", attn_implementation=attention))
    model = accelerator.prepare_model(make_model("Llama"))
    model.set_attn_implementation(attention)
    ids = batch()["input_ids"]
    with pytest.raises(ConfigError) as later, accelerator.maybe_context_parallel([ids], [1]):
        model(ids)
    return str(at_first.value), str(later.value)


def refusals():
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2))
    told = []
    with pytest.raises(ConfigError) as caught:
        accelerator.prepare_model(
            make_model("Qwen3Next", linear_num_value_heads=4, linear_num_key_heads=2, num_experts=2)
        )
    told.append(str(caught.value))
    with pytest.raises(ConfigError) as caught:
        accelerator.prepare_model(make_model("Falcon", alibi=True))
    told.append(str(caught.value))
    model = make_model("Llama")
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    ids = batch()["input_ids"]
    whole = model.generate(ids.clone(), max_new_tokens=2)
    with pytest.raises(StateError) as caught, accelerator.maybe_context_parallel([ids], [1]):
        model.generate(ids, max_new_tokens=2)
    told.append(str(caught.value))
    mask = torch.ones(2, 1, 12, 12, dtype=torch.bool)
    with pytest.raises(ConfigError) as caught, accelerator.maybe_context_parallel([ids, mask], [1, 2]):
        model(ids, attention_mask=mask)
    told.append(str(caught.value))
    return told, whole


def test_what_ranks_cannot_share_is_refused_and_outside_of_blocks_sequences_are_unsharded(world):
    for told, whole in world(2).run(refusals):
        linear, alibi, cache, pairs = told
        assert "`linear_attention`, which ranks that share sequences cannot compute" in linear
        assert "`FalconForCausalLM` has layers of the kinds `alibi`, which ranks" in alibi
        assert "tensors that are no part of the batch" in cache
        assert "`attention_mask` is of shape (2, 1, 6, 12)" in pairs
        expected = make_model("Llama").generate(batch()["input_ids"], max_new_tokens=2)
        assert whole.equal(expected)


def masks_of_layers(kind, settings, *, packed):
    """Return the masks that the layers are called with where sequences are shared, and where they are not."""
    reset_runtime(keep_process_group=True)
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2))
    model = make_model(kind, **settings)
    masks = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    model = accelerator.prepare_model(model)
    inputs = batch(packed=packed)
    buffers = list(inputs.values())
    with torch.no_grad():
        with accelerator.maybe_context_parallel(buffers, [1] * len(buffers)):
            model(**inputs, use_cache=False)
        shared = masks[:]
        model(**inputs, use_cache=False)
    return shared, masks[len(shared) :]


def masks_of_all():
    rows = [("Llama", {}, False), ("Qwen2", {}, True), ("Mistral", {"sliding_window": 4}, False)]
    return [masks_of_layers(kind, settings, packed=packed) for kind, settings, packed in rows]


def test_no_mask_is_built_for_pairs_of_a_ranks_tokens_where_sequences_are_shared(world):
    for each in world(2).run(masks_of_all):
        for shared, unshared in each:
            assert shared == [None, None]
            assert [mask.shape for mask in unshared] == 2 * [(2, 1, 12, 12)]
