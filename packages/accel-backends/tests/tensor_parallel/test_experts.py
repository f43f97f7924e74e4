"""That models of transformers train right with them is tested with the Accelerator."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import parallelize_module

from accel_backends.tensor_parallel.experts import CUT_EXPERTS, ExpertsParallel, styles_of_experts
from accel_state.errors import ConfigError
from tools.harness.models import StackedExperts


def cut(is_named):
    torch.manual_seed(0)
    whole, experts = StackedExperts(4, 6, 8), StackedExperts(4, 6, 8)
    experts.load_state_dict(whole.state_dict())
    experts.down.requires_grad_(False)
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(experts, mesh, ExpertsParallel({"up": Shard(1), "down": Shard(2)}), src_data_rank=None)
    assert not experts.down.requires_grad
    assert experts.up.to_local().shape == (4, 4, 6)
    hidden, weights, chosen = torch.randn(5, 6), torch.rand(5, 2), torch.randint(4, (5, 2))
    found = []
    for module in (experts, whole):
        inputs = [hidden.clone().requires_grad_(), chosen, weights.clone().requires_grad_()]
        outputs = module(hidden=inputs[0], chosen=chosen, weights=inputs[2]) if is_named else module(*inputs)
        outputs += 1  # in place, as some models add to it
        outputs.square().sum().backward()
        found.append((outputs.detach(), inputs[0].grad, inputs[2].grad))
    torch.testing.assert_close(experts.up.grad.full_tensor(), whole.up.grad)
    torch.testing.assert_close(*found)
    return found[0]


@pytest.mark.parametrize("is_named", [False, True])
def test_outputs_and_gradients_of_inputs_are_those_of_full_experts_on_every_rank(world, is_named):
    first, second = world(2).run(cut, is_named)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("styles", "num_ranks", "part"),
    [
        ({"up": "colwise", "down": "rowwise"}, 3, "`up` has the style .*3 does not divide the 8 rows .*1, 2, 4, 8; or"),
        ({"up": "colwise"}, 2, r"`experts.down`, .* \(4, 6, 8\), has no style .* `tp_size` to 1"),
        ({"up": "colwise", "down": "replicate"}, 2, "`experts.down`.* has the style `replicate`.*`ep_size`"),
        ({"up": "colwise", "down": "rowwise", "act": "moe_identity_expert"}, 2, "`experts.act` is a module among"),
    ],
)  # fmt: skip
def test_experts_that_ranks_cannot_share_are_refused_with_what_would_work(styles, num_ranks, part):
    styled = {"experts": CUT_EXPERTS, **{f"experts.{key}": style for key, style in styles.items()}}
    with pytest.raises(ConfigError, match=part.replace("`up`", "`experts.up`")):
        styles_of_experts({"experts": StackedExperts(4, 6, 8)}, styled, num_ranks=num_ranks)
