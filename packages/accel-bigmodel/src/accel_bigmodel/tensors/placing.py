"""Put one tensor of a model somewhere, by its name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.tensors.dtypes import as_torch_dtype
from accel_bigmodel.tensors.kinds import as_parameter_like, kind_of
from accel_ops.memory import clear_device_cache
from accel_state.errors import ConfigError, UnknownNameError

TiedParams = MutableMapping[int, MutableMapping[torch.device, torch.Tensor]]


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Return the attribute at a dotted path."""
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj


def check_device_same(first_device: torch.device, second_device: torch.device) -> bool:
    """Whether two devices are one; a device without a number is the current one of its kind."""
    if first_device.type != second_device.type:
        return False
    return None in (first_device.index, second_device.index) or first_device.index == second_device.index


def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: int | str | torch.device,
    value: torch.Tensor | None = None,
    dtype: str | torch.dtype | None = None,
    fp16_statistics: torch.Tensor | None = None,
    tied_params_map: TiedParams | None = None,
    non_blocking: bool = False,
    clear_cache: bool = True,
) -> None:
    """Put a parameter or buffer on ``device``, with new values if ``value`` is given.

    What is on the device already, in that dtype, stays the same object. Otherwise the module gets a new tensor of the
    same class; a parameter keeps ``requires_grad`` and its attributes.

    Args:
        module: The module, or one around it.
        tensor_name: Dotted name from ``module`` down.
        device: Where to.
        value: New values; must be given to leave the meta device.
        dtype: What the values are converted to; by default to what the tensor was. Integers stay as they are.
        fp16_statistics: Scales of an 8-bit weight, kept with it.
        tied_params_map: By address of the stored tensor, where it already is; shared weights are moved once.
        non_blocking: Do not wait for the copy.
        clear_cache: Afterwards hand unused memory of an accelerator back to the driver.

    Raises:
        UnknownNameError: If the module has no such tensor.
        ConfigError: If the shape differs, or a tensor on the meta device is moved without a ``value``.
    """
    owner, name = _owner(module, tensor_name)
    members: MutableMapping[str, Any] = owner._parameters if name in owner._parameters else owner._buffers
    old = members[name]
    target = torch.device(device)
    if old is None:
        members[name] = None if value is None else _value_on(value, target, dtype, value.dtype, non_blocking)
        return
    if value is None and old.is_meta and target.type != "meta":
        raise ConfigError(
            f"`{tensor_name}` is on the meta device: to put it on `{device}`, give its `value`."
        )
    if value is not None and value.shape != old.shape and kind_of(type(old)).has_shape_of_values:
        raise ConfigError(
            f"`{tensor_name}` has the shape {tuple(old.shape)}, the `value` has {tuple(value.shape)}."
        )
    source = old if value is None else value
    known = None if tied_params_map is None else tied_params_map.get(source.data_ptr())
    if known is not None and target in known:
        new = known[target]
    else:
        with torch.no_grad():
            moved = _value_on(source, target, dtype, old.dtype, non_blocking)
        is_same = value is None and _is_same_memory(moved, old)
        new = old if is_same else as_parameter_like(old, moved) if members is owner._parameters else moved
        if known is not None:
            known[target] = new
    if fp16_statistics is not None:
        new.SCB = fp16_statistics.to(target)  # type: ignore[attr-defined]
    if new is not old:
        setattr(owner, name, new) if isinstance(new, nn.Parameter) else members.__setitem__(name, new)
    if clear_cache and new is not old and target.type not in ("cpu", "meta"):
        clear_device_cache()


def retie_parameters(model: nn.Module, tied_params: Sequence[Sequence[str]]) -> None:
    """Make the names of each group one parameter again: the first that is not on the meta device.

    Raises:
        UnknownNameError: If the model has no such parameter.
    """
    for group in tied_params:
        places = [(*_owner(model, name), name) for name in group]
        found = [owner._parameters[inner] for owner, inner, _ in places]
        real = [parameter for parameter in found if parameter is not None and not parameter.is_meta]
        kept = (real or [parameter for parameter in found if parameter is not None])[0]
        for owner, inner, _ in places:
            setattr(owner, inner, kept)


def _owner(module: nn.Module, tensor_name: str) -> tuple[nn.Module, str]:
    path, _, name = tensor_name.rpartition(".")
    owner: Any = module
    for part in path.split(".") if path else ():
        owner = getattr(owner, part, None)
    members: Mapping[str, Any] = {}
    if isinstance(owner, nn.Module):
        members = {**owner._parameters, **owner._buffers}
    if name not in members:
        known = [found for found, _ in [*module.named_parameters(), *module.named_buffers()]]
        raise UnknownNameError.of(f"tensor of `{type(module).__name__}`", tensor_name, known[:1000])
    assert isinstance(owner, nn.Module)
    return owner, name


def _value_on(
    value: torch.Tensor,
    device: torch.device,
    dtype: str | torch.dtype | None,
    old_dtype: torch.dtype,
    non_blocking: bool,
) -> torch.Tensor:
    wanted = old_dtype if dtype is None else as_torch_dtype(dtype)
    if dtype is not None and not (value.is_floating_point() or value.is_complex()):
        wanted = value.dtype
    plain = value.detach().as_subclass(torch.Tensor)
    return plain.to(device=device, dtype=wanted, non_blocking=non_blocking)


def _is_same_memory(moved: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether nothing was moved or converted."""
    if moved.device != old.device or moved.dtype != old.dtype:
        return False
    return moved.is_meta or moved.data_ptr() == old.data_ptr()
