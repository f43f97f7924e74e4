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
    """Yield the parameters and then the buffers of ``module``, each tied tensor once, under its first name.

    Args:
        module: The module, with tensors of any shape and device.
        include_buffers: Yield buffers.
        recurse: Yield the tensors of submodules, too, with dotted names.
        remove_non_persistent: Skip buffers that are not part of the state dict.
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
        fqns: Return dotted names from ``module`` down, instead of the name inside each submodule.
    """
    modules = module.named_modules(remove_duplicate=False) if recurse else [("", module)]
    return {
        f"{prefix}.{name}" if fqns and prefix else name
        for prefix, submodule in modules
        for name in submodule._non_persistent_buffers_set  # as `state_dict` does; it has no public name
    }


TiedParams = MutableMapping[int, MutableMapping[torch.device, torch.Tensor]]


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Return the attribute at a dotted path."""
    for name in attr.split("."):
        obj = getattr(obj, name)
    return obj


def check_device_same(first_device: torch.device, second_device: torch.device) -> bool:
    """Whether two devices are equal; a device without an index equals every device of its type."""
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
        value: New values, of the tensor's shape, on any device; required to leave the meta device.
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
            f"`{tensor_name}` is on the meta device: to move it to `{device}`, pass its `value`."
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
    """Replace a parameter or buffer of ``owner`` by ``tensor``, of any shape and device; faster than ``setattr``."""
    if type(owner).__setattr__ is _PLAIN_SETATTR:
        members: dict[str, Any] = owner._parameters if name in owner._parameters else owner._buffers
        members[name] = tensor
    else:
        setattr(owner, name, tensor)  # recurrent layers override it, to update a second list of their weights


def owner_of(module: nn.Module, tensor_name: str) -> tuple[nn.Module, str]:
    """Return the module that has the tensor with a dotted name, and its name in that module.

    Raises:
        UnknownNameError: If there is no such tensor.
    """
    path, _, name = tensor_name.rpartition(".")
    owner: Any = module
    for part in path.split(".") if path else ():
        owner = getattr(owner, part, None)
    members: Mapping[str, Any] = {}
    if isinstance(owner, nn.Module):
        members = {**owner._parameters, **owner._buffers}
    if name not in members:
        known = [known_name for known_name, _ in [*module.named_parameters(), *module.named_buffers()]]
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
    """Whether a class is, or is derived from, the class with a full name, which need not be imported."""
    return any(f"{base.__module__}.{base.__qualname__}" == name for base in tensor_class.__mro__)


def has_shape_of_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor, on any device, has the shape of its weight: not if 4-bit values are packed in pairs."""
    return not _is_a(resident_class(tensor), _FOUR_BITS)


def is_int8(tensor: torch.Tensor) -> bool:
    """Whether a tensor (any shape and device) is the weight of an 8-bit layer.

    After a forward pass the ``state`` of such a layer refers to values and scales, too.
    """
    return _is_a(resident_class(tensor), _INT8)


def forget_int8_values(layer: Any) -> None:
    """Release the values and scales that the ``state`` of an 8-bit layer refers to after its forward pass."""
    if getattr(layer, "state", None) is not None:
        layer.state.CB = layer.state.SCB = None


def resident_class(tensor: torch.Tensor) -> type:
    """Return the class of a tensor of any shape and device; for a placeholder, the class of its values."""
    kind: type = tensor.__dict__.get("resident_class", type(tensor))
    return kind


def attributes_of(tensor: torch.Tensor, owner: nn.Module | None = None) -> dict[str, Any]:
    """Return the attributes that a replacement of this tensor needs, without a second copy of the values.

    Args:
        tensor: A parameter, a buffer or a placeholder, of any shape and device.
        owner: The module that it belongs to, if that is known.
    """
    attributes = {key: value for key, value in vars(tensor).items() if key not in _OF_PLACEHOLDERS}
    if attributes and is_int8(tensor):
        state: Any = getattr(owner, "state", None)
        attributes["CB"] = None  # the values
        if attributes["SCB"] is None and state is not None:
            attributes["SCB"] = state.SCB  # the first forward moves the scales there
    return attributes


_OF_PLACEHOLDERS = ("_weight", "_itself", "resident_class")


def as_parameter_like(
    old: torch.Tensor, values: torch.Tensor, *, requires_grad: bool | None = None
) -> nn.Parameter:
    """Return ``values``, of any shape and device, as a parameter with the class and attributes of ``old``.

    ``requires_grad`` is that of ``old`` by default, and always False for integers.
    """
    requires_grad = old.requires_grad if requires_grad is None else requires_grad
    requires_grad = requires_grad and (values.is_floating_point() or values.is_complex())
    wanted, attributes = resident_class(old), attributes_of(old)
    if wanted is nn.Parameter and not attributes and type(values) is torch.Tensor:
        # The usual case, for many thousand tensors: `nn.Parameter(values, requires_grad)` without its checks.
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


# Attributes of every module: torch's tables of tensors, and hooks. They are not aliases.
_OWN = frozenset(vars(nn.Module()))
_DEPTH = 3


def check_aliases(model: nn.Module, replaced: Collection[int]) -> None:
    """Raise if a plain attribute still refers to a tensor without values that was replaced in its module.

    Some kernels, such as that of ``F.linear``, accept it and return arbitrary numbers.

    Args:
        model: Attributes of all its modules are searched, and lists, tuples and dictionaries in them.
        replaced: The identities of the replaced tensors, all on the meta device.

    Raises:
        StateError: If there is such an attribute; names it.
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
