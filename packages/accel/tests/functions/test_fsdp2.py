"""The single steps under their documented names."""

import pytest
import torch
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel.utils import (
    compile_regions_fsdp2,
    fsdp2_apply_ac,
    fsdp2_canonicalize_names,
    fsdp2_prepare_model,
    fsdp2_switch_optimizer_parameters,
    get_fsdp2_grad_scaler,
)
from accel.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from accel_backends.testing.models import make_batches, make_model
from accel_state.errors import ConfigError

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
