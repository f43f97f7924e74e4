"""Mixture models of transformers whose experts are distributed over ranks, or cut, train as in one process."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.planning.step import Step, planned_step
from accel_backends import resolve_plan
from accel_backends.fsdp.state import full_tensor
from accel_state.mesh_layout import MeshLayout

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]
TOKENS = torch.arange(32).reshape(4, 8) * 7 % 29
SIZES = {
    "Mixtral": {"num_local_experts": 4, "intermediate_size": 24},
    "DeepseekV3": {
        "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
    },
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 12, "head_dim": 8, "num_experts_per_tok": 2},
}  # fmt: skip


def tiny(kind, implementation):
    """Return a model whose routers add their own loss, and treat the experts unevenly."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=40, pad_token_id=0,
        output_router_logits=True, router_aux_loss_coef=0.1, **{"num_key_value_heads": 2, **SIZES[kind]},
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.set_experts_implementation(implementation)
    return model


def train(kind, implementation, num_ranks):
    """Train on rows of each rank; one process, with ``num_ranks`` 0, takes those of two ranks one after the other."""
    config = ParallelismConfig(ep_size=num_ranks) if num_ranks else None
    accelerator = Accelerator(
        cpu=True, parallelism_config=config, gradient_accumulation_steps=1 if num_ranks else 2
    )
    model = tiny(kind, implementation)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses, norms = [], []
    for _ in range(2):
        parts = TOKENS.split(2)
        for rows in parts[accelerator.process_index :][:1] if num_ranks else parts:
            with accelerator.accumulate(model):
                found = model(rows, labels=rows)
                accelerator.backward(found.loss)
                losses.append((found.loss.item(), found.aux_loss.item()))
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                optimizer.step()
                optimizer.zero_grad()
    return losses, norms, accelerator.get_state_dict(model)


@pytest.mark.parametrize(("kind", "implementation"), [("Mixtral", "eager"), ("Qwen3Moe", "grouped_mm")])
def test_experts_that_ranks_share_train_as_in_one_process(world, kind, implementation):
    [(alone, norms, expected)] = world(1).run(train, kind, implementation, 0)
    (losses, found, state), (of_other, same, _) = world(2).run(train, kind, implementation, 2)
    for step in range(2):
        torch.testing.assert_close(
            (losses[step], of_other[step]), tuple(alone[2 * step :][:2]), rtol=1e-6, atol=1e-6
        )
    assert found == same == pytest.approx(norms, rel=1e-6)
    torch.testing.assert_close(state, expected, rtol=0, atol=1e-5)


def exact_steps(layout, kind="Mixtral", implementation="eager"):
    """Return the gradients of a first step, norms, and the parameters after some steps of AdamW, all in float64."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**layout) if layout else None)
    model = tiny(kind, implementation).double()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    gradients, norms = {}, []
    for _ in range(3):
        accelerator.backward(model(TOKENS, labels=TOKENS).loss)
        if not gradients:
            gradients = {name: whole(one.grad) for name, one in model.named_parameters()}
        norms.append(
            accelerator.clip_grad_norm_(model.parameters(), 1e9).item()
        )  # in float32, so nothing is clipped
        optimizer.step()
        optimizer.zero_grad()
    return gradients, norms, accelerator.get_state_dict(model)


def whole(tensor):
    return (full_tensor(tensor) if isinstance(tensor, DTensor) else tensor).clone()


FLOAT64, FLOAT32 = (1e-14, 1e-13), (1e-7, 1e-5)
"""By how much gradients differ, relatively, and parameters after three steps."""


@pytest.mark.parametrize(
    ("kind", "implementation", "layout", "rounding"),
    [
        ("Mixtral", "eager", {"tp_size": 2, "ep_size": 2}, FLOAT64),
        ("Mixtral", "eager", {"tp_size": 2, "dp_shard_size": 2}, FLOAT32),
        ("Qwen3Moe", "batched_mm", {"tp_size": 2}, FLOAT64),
        ("DeepseekV3", "eager", {"tp_size": 2}, FLOAT32),
    ],
)
def test_experts_and_layers_that_ranks_share_have_the_gradients_of_one_process(
    world, kind, implementation, layout, rounding
):
    """In float32 gradients agree to 4e-7, and AdamW divides those of 1e-8, which are rounding errors, by their size.

    Steps differ by some 1e-5 then. In float64 nothing but rounding is left. Some routers give weights in float32 all
    the same, and where experts are cut, each rank rounds its part of the gradient of these.
    """
    [(expected, norms, after)] = world(1).run(exact_steps, {}, kind, implementation)
    of_ranks = world(2 * layout.get("dp_shard_size", 1)).run(exact_steps, layout, kind, implementation)
    for found, same, state in of_ranks:
        assert same == of_ranks[0][1] == pytest.approx(norms, rel=1e-6)
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= rounding[0] * gradient.norm(), name
        if state:
            torch.testing.assert_close(state, dict(after), rtol=0, atol=rounding[1])


def pass_on(form, layout, source, target):
    """Load what the layout before has written, or make a step; save; return the states, and the model a step later."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=f"{form}_STATE_DICT")
    accelerator = Accelerator(
        cpu=True,
        fsdp_plugin=plugin if layout else None,
        parallelism_config=ParallelismConfig(**layout) if layout else None,
    )
    model = tiny("Qwen3Moe", "eager").double()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    def step():
        accelerator.backward(model(TOKENS, labels=TOKENS).loss)
        optimizer.step()
        optimizer.zero_grad()

    if source is None:
        step()
    else:
        accelerator.load_state(source)
    accelerator.save_state(target)
    parameters = {name: whole(one.detach()) for name, one in model.named_parameters()}
    moments = [whole(optimizer.state[one]["exp_avg"]) for one in model.parameters()]
    step()
    return parameters, moments, {name: whole(one.detach()) for name, one in model.named_parameters()}


@pytest.mark.parametrize("form", ["SHARDED", "FULL"])
def test_checkpoints_of_experts_that_ranks_share_are_read_by_one_process_and_back(world, tmp_path, form):
    shared = {"tp_size": 2}
    (parameters, moments, after), _ = world(2).run(pass_on, form, shared, None, tmp_path / "0")
    for number, layout in enumerate([None, shared]):
        folders = tmp_path / str(number), tmp_path / str(number + 1)
        for found, same, later in world(2 if layout else 1).run(pass_on, form, layout, *folders):
            torch.testing.assert_close(found, parameters, rtol=0, atol=0)
            torch.testing.assert_close(same, moments, rtol=0, atol=0)
            torch.testing.assert_close(later, after, rtol=0, atol=1e-13)


def held_bytes(layout):
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**layout))
    model = accelerator.prepare(tiny("Mixtral", "eager"))
    return sum(
        one.to_local().nbytes if isinstance(one, DTensor) else one.nbytes for one in model.parameters()
    )


def test_the_plan_counts_experts_that_ranks_share(world):
    model = tiny("Mixtral", "eager")
    plan = resolve_plan(model)
    [stage] = planned_step(model, plan, MeshLayout(tp=2), Step(batch_size=4, sequence_length=8))
    stored = sum(one.num_local for unit in stage.units for one in unit.parameters)
    assert world(2).run(held_bytes, {"tp_size": 2}) == [stored] * 2
    hidden, weights = 4 * 8 * 32 * 4, 4 * 8 * 2 * 4
    sent = {(one.kind, one.num_bytes): count for one, count in stage.collectives.items()}
    # In each of two layers the inputs of query, key, value and experts, and outputs of attention and experts; next to
    # them those of the embedding, and the inputs of the head.
    assert sent == {
        ("all_reduce", hidden): 2 * 6 + 2,
        ("all_reduce", weights): 2,
        ("all_gather", 4 * 8 * 40 * 4): 1,  # logits
    }
