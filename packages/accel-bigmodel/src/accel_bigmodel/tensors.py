"""Tensors of a module by name, how to move or replace one, and parameter subclasses that carry state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any, cast

import torch
from torch import nn

from accel_bigmodel.dtypes import as_torch_dtype
from accel_ops.named_tensors import walk_modules
from accel_state.devices.backend import device_backend_of
from accel_state.errors import ConfigError, StateError, UnknownNameError


def named_module_tensors(
    module: nn.Module,
    include_buffers: bool = True,
    recurse: bool = False,
    remove_non_persistent: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and then the buffers of ``module``, each tied one once, under its first name.

    Args:
        module: The module to walk.
        include_buffers: Whether buffers are yielded at all.
        recurse: Whether those of submodules are yielded too, with dotted names.
        remove_non_persistent: Leave out buffers that are not part of the state dict.
    """
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    left_out = (
        get_non_persistent_buffers(module, recurse=recurse, fqns=True) if remove_non_persistent else set()
    )
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in left_out:
            yield name, buffer


def get_non_persistent_buffers(module: nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Return the names of the buffers that are not part of the state dict.

    Args:
        module: The module to look at.
        recurse: Whether to look into its submodules.
        fqns: Give dotted names from ``module`` down, rather than the name inside each submodule.
    """
    modules = module.named_modules(remove_duplicate=False) if recurse else [("", module)]
    return {
        f"{prefix}.{name}" if fqns and prefix else name
        for prefix, submodule in modules
        for name in submodule._non_persistent_buffers_set
    }


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
    """Move a parameter or buffer to ``device``, or replace its values if ``value`` is given.

    A tensor that is on the device already, in that dtype, stays the same object. Otherwise the module gets a new tensor
    of the same class; a parameter keeps ``requires_grad`` and its attributes.

    Args:
        module: The module, or one around it.
        tensor_name: Dotted name from ``module`` down.
        device: Target device.
        value: New values; must be given to leave the meta device.
        dtype: Dtype of the new values, by default that of the tensor. Integers are not converted.
        fp16_statistics: Scales of an 8-bit weight, kept with it.
        tied_params_map: Copies of tied weights by address and device; a tied weight is moved to each device once.
        non_blocking: Do not wait for the copy.
        clear_cache: If the tensor leaves an accelerator, release the memory that this has cached.

    Raises:
        UnknownNameError: If the module has no such tensor.
        ConfigError: If the shape differs, or a tensor on the meta device is moved without a ``value``.
    """
    owner, name = owner_of(module, tensor_name)
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
    if value is not None and value.shape != old.shape and has_shape_of_values(old):
        raise ConfigError(
            f"`{tensor_name}` has the shape {tuple(old.shape)}, the `value` has {tuple(value.shape)}. "
            "Pass a value of the same shape."
        )
    source = old if value is None else value
    # Tensors on the meta device have no address.
    known = None if tied_params_map is None or source.is_meta else tied_params_map.get(source.data_ptr())
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
        assign(owner, name, new)
    if clear_cache and new is not old and old.device.type not in ("cpu", "meta"):
        device_backend_of(old.device).empty_cache()


_PLAIN_SETATTR = nn.Module.__setattr__


def assign(owner: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Put ``tensor`` in the place of a parameter or buffer of ``owner``; much faster than ``setattr``."""
    if type(owner).__setattr__ is _PLAIN_SETATTR:
        members: dict[str, Any] = owner._parameters if name in owner._parameters else owner._buffers
        members[name] = tensor
    else:
        setattr(owner, name, tensor)  # recurrent layers also keep a list of their weights


def owner_of(module: nn.Module, tensor_name: str) -> tuple[nn.Module, str]:
    """Return the module that has the tensor with a dotted name, and the name there."""
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


_INT8 = "bitsandbytes.nn.modules.Int8Params"
_FOUR_BITS = "bitsandbytes.nn.modules.Params4bit"


def _is_a(tensor_class: type, name: str) -> bool:
    """Whether a class is, or is derived from, the one with a full name, which need not be imported."""
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in tensor_class.__mro__)


def has_shape_of_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has the shape of the weight that it represents; 4-bit weights hold two values in a byte."""
    return not _is_a(resident_class(tensor), _FOUR_BITS)


def is_int8(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a weight of an 8-bit layer, whose ``state`` refers to values and scales after a forward."""
    return _is_a(resident_class(tensor), _INT8)


def forget_int8_values(layer: Any) -> None:
    """Release the values and scales to which an 8-bit layer refers after its forward."""
    if getattr(layer, "state", None) is not None:
        layer.state.CB = layer.state.SCB = None


def resident_class(tensor: torch.Tensor) -> type:
    """Return the class of a tensor, for a placeholder that of the tensor it stands for."""
    found: type = tensor.__dict__.get("resident_class", type(tensor))
    return found


def attributes_of(tensor: torch.Tensor, owner: nn.Module | None = None) -> dict[str, Any]:
    """Return the attributes that a new tensor in place of this one needs, without a second copy of the values.

    Args:
        tensor: A parameter, a buffer or a placeholder.
        owner: The module that it belongs to, if that is known.
    """
    found = {key: value for key, value in vars(tensor).items() if key not in _OF_PLACEHOLDERS}
    if found and is_int8(tensor):
        state: Any = getattr(owner, "state", None)
        found["CB"] = None  # the values
        if found["SCB"] is None and state is not None:
            found["SCB"] = state.SCB  # the first forward moves the scales there
    return found


_OF_PLACEHOLDERS = ("_weight", "_itself", "resident_class")


def as_parameter_like(
    old: torch.Tensor, values: torch.Tensor, *, requires_grad: bool | None = None
) -> nn.Parameter:
    """Return ``values`` as a parameter of the class of ``old``, its attributes and ``requires_grad`` (by default)."""
    requires_grad = old.requires_grad if requires_grad is None else requires_grad
    requires_grad = requires_grad and (values.is_floating_point() or values.is_complex())
    wanted, attributes = resident_class(old), attributes_of(old)
    if wanted is nn.Parameter and not attributes and type(values) is torch.Tensor:
        # Nearly always, and many thousand times: what `nn.Parameter(values, requires_grad)` comes to.
        made: nn.Parameter = torch.Tensor._make_subclass(nn.Parameter, values, requires_grad)
        return made
    plain, make = values.as_subclass(torch.Tensor), cast(Any, wanted)
    if _is_a(wanted, _INT8):
        codes, scales = plain if plain.dtype == torch.int8 else None, attributes["SCB"]
        scales = None if scales is None else scales.to(plain.device)
        made = make(
            plain, requires_grad, has_fp16_weights=attributes["has_fp16_weights"], CB=codes, SCB=scales
        )
        return made
    if _is_a(wanted, _FOUR_BITS):
        made = make(plain, requires_grad=requires_grad, **attributes).to(plain.device)
        return made
    if (
        isinstance(values, wanted)
        and isinstance(values, nn.Parameter)
        and values.requires_grad == requires_grad
    ):
        made = values
    else:
        kind = make if issubclass(wanted, nn.Parameter) else nn.Parameter
        made = kind(values, requires_grad=requires_grad)
    for key, attribute in attributes.items():
        made.__dict__.setdefault(key, attribute)
    return made


# Attributes of every module: tables of torch's, and hooks, which are functions.
_OWN = frozenset(vars(nn.Module()))
_DEPTH = 3


def check_aliases(model: nn.Module, replaced: Collection[int]) -> None:
    """Raise if a plain attribute still holds a tensor without values that was replaced in its module.

    Kernels such as that of ``F.linear`` accept it and return numbers that mean nothing.

    Args:
        model: Attributes of all its modules are searched, and lists, tuples and dictionaries in them.
        replaced: The identities of the replaced tensors, all on the meta device.

    Raises:
        StateError: It names the attribute.
    """
    if not replaced:
        return
    for path, module in walk_modules(model):
        for name in vars(module).keys() - _OWN:
            if any(id(tensor) in replaced for tensor in _tensors_in(vars(module)[name], _DEPTH)):
                raise StateError(
                    f"`{path}.{name}`".replace("`.", "`")
                    + f" of `{type(module).__name__}` keeps a weight of the "
                    "skeleton, which has no values, outside of the parameters. Read the parameter in `forward`, or "
                    "build the model with its weights."
                )


def _tensors_in(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth - 1)
