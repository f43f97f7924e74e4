"""The single steps under their documented names."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel.utils import (
    compile_regions_fsdp2,
    fsdp2_apply_ac,
    fsdp2_canonicalize_names,
    fsdp2_load_full_state_dict,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
    get_fsdp2_grad_scaler,
)
from accel.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from accel_state.errors import CheckpointError, ConfigError
from tools.harness.models import make_batches, make_model

pytestmark = pytest.mark.usefixtures("fresh_state")


def plugin(**settings):
    return FullyShardedDataParallelPlugin(fsdp_version=2, **settings)


def test_names_lose_what_wrappers_add():
    named = {"_orig_mod.blocks.0._checkpoint_wrapped_module.up.weight": 1, "head._orig_mod.bias": 2}
    assert fsdp2_canonicalize_names(named) == {"blocks.0.up.weight": 1, "head.bias": 2}


def test_an_optimizer_is_switched_with_its_state_or_not_at_all():
    old, new = make_model("odd"), make_model("odd", seed=8)
    optimizer = torch.optim.Adagrad(old.parameters(), initial_accumulator_value=0.7)
    mapping = {one.data_ptr(): other for one, other in zip(old.parameters(), new.parameters(), strict=True)}
    fsdp2_switch_optimizer_parameters(optimizer, mapping)
    assert [id(one) for one in optimizer.param_groups[0]["params"]] == [id(one) for one in new.parameters()]
    assert optimizer.state[new.head.weight]["sum"].eq(0.7).all()
    with pytest.raises(KeyError, match=r"shape \(33, 7\)"):
        fsdp2_switch_optimizer_parameters(optimizer, {})


def test_the_policy_knows_the_units():
    model = make_model("odd")
    is_unit = fsdp2_prepare_auto_wrap_policy(
        plugin(auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]), model
    )
    assert [is_unit(block) for block in model.blocks] == [True] * 3
    assert not is_unit(model.head)


def test_checkpointed_units_have_the_same_gradients():
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin())
    plain, checkpointed = make_model("dropout"), make_model("dropout")
    assert fsdp2_apply_ac(accelerator, checkpointed) is checkpointed
    for model in (plain, checkpointed):
        torch.manual_seed(1)
        model(make_batches(1)[0]).sum().backward()
    for one, other in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_without_a_plugin_there_are_no_units():
    with pytest.raises(ConfigError, match="does not shard"):
        fsdp2_apply_ac(Accelerator(cpu=True), make_model("odd"))


def test_a_model_is_sharded_in_place():
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin())
    model = make_model("odd")
    assert fsdp2_prepare_model(accelerator, model) is model
    assert type(model.head.weight) is not nn.Parameter


def test_blocks_are_compiled_in_place():
    model, rows = make_model("odd"), make_batches(1)[0]
    expected = model(rows)
    assert compile_regions_fsdp2(model, backend="eager") is model
    assert torch.equal(model(rows), expected)
    assert list(model.state_dict()) == list(make_model("odd").state_dict())


def test_the_scaler_takes_the_arguments_of_torchs():
    Accelerator(cpu=True)
    assert get_fsdp2_grad_scaler(init_scale=8.0).get_scale() == 8.0


def load_state_of_rank_0(kind, is_empty, state):
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin())
    model = make_model(kind, seed=8)
    if is_empty:
        model.to("meta")
        if kind == "tied":
            model.head.weight = model.embed.weight
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh, ignored_params={one for one in model.parameters() if one.dim() == 0})
    try:
        returned = fsdp2_load_full_state_dict(
            accelerator, model, state if accelerator.is_main_process else {}
        )
    except CheckpointError as error:
        return str(error)
    assert returned is model
    values = model.state_dict()
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in values.items()}


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("kind", ["odd", "tied", "buffered"])
def test_a_full_state_of_rank_0_comes_into_a_sharded_model(world, kind, is_empty):
    expected = make_model(kind).state_dict()
    for state in world(2).run(load_state_of_rank_0, kind, is_empty, expected):
        assert list(state) == list(expected)
        assert all(torch.equal(value, expected[name]) for name, value in state.items())


def test_a_state_of_another_model_is_an_error_on_every_rank_that_names_all(world):
    state = make_model("odd").state_dict()
    state["haed.weight"] = state.pop("head.weight")
    state["head.bias"] = torch.zeros(3)
    for message in world(2).run(load_state_of_rank_0, "odd", True, state):
        assert "`head.bias` has the shape (3,) in the state and (1,) in the model" in message
        assert "not in the state: `head.weight`" in message
        assert "not in the model: `haed.weight`" in message
