"""Mixture models of transformers whose experts are spread over ranks train as in one process."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor

from accel import Accelerator, ParallelismConfig

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.arange(32).reshape(4, 8) * 7 % 29
SIZES = {
    "Mixtral": {"num_local_experts": 4, "intermediate_size": 24},
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 12, "head_dim": 8, "num_experts_per_tok": 2},
}


def tiny(kind, implementation):
    """Return a model whose routers add their own loss, and treat the experts unevenly."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
        pad_token_id=0, output_router_logits=True, router_aux_loss_coef=0.1, **SIZES[kind],
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


def exact_steps(layout):
    """Return the gradients of a first step, and the parameters after some steps of AdamW, all in float64."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**layout) if layout else None)
    model = tiny("Mixtral", "eager").double()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    gradients = {}
    for _ in range(3):
        accelerator.backward(model(TOKENS, labels=TOKENS).loss)
        if not gradients:
            gradients = {
                name: (one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad).clone()
                for name, one in model.named_parameters()
            }
        optimizer.step()
        optimizer.zero_grad()
    return gradients, accelerator.get_state_dict(model)


def test_experts_and_layers_that_ranks_share_have_the_gradients_of_one_process(world):
    """In float32 gradients agree to 4e-7, and AdamW divides those of 1e-8, which are rounding errors, by their size.

    Steps differ by some 1e-5 then. In float64 nothing but rounding is left.
    """
    [(expected, after)] = world(1).run(exact_steps, {})
    for found, state in world(2).run(exact_steps, {"tp_size": 2, "ep_size": 2}):
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= 1e-14 * gradient.norm(), name
        if state:
            torch.testing.assert_close(state, dict(after), rtol=0, atol=1e-13)
