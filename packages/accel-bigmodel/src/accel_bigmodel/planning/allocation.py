"""Automatic device maps: assign the parts of a model to the devices, in order, in one pass."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import nn

from accel_bigmodel.planning.device_maps import clean_device_map, device_of
from accel_bigmodel.planning.max_memory import Dtype, MaxMemory, get_balanced_memory, get_max_memory
from accel_bigmodel.planning.model_pieces import Piece, PieceReader
from accel_bigmodel.planning.sizes import calculate_maximum_sizes
from accel_ops.byte_sizes import convert_bytes
from accel_state.errors import ConfigError, UnknownNameError
from accel_state.user_warnings import warn_user

logger = logging.getLogger(__name__)
_MODES = ("auto", "balanced", "balanced_low_0", "sequential")


def infer_auto_device_map(
    model: nn.Module,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | None = None,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    verbose: bool = False,
    clean_result: bool = True,
    offload_buffers: bool = False,
    fallback_allocation: bool = False,
) -> dict[str, int | str]:
    """Return a device for every part of ``model``: accelerators first, then the CPU, then the disk.

        infer_auto_device_map(model, {0: "10GiB", "cpu": "30GiB"}, no_split_module_classes=["Block"])

    Parts are assigned in the order of the model, so that activations never move back to an earlier device. While
    layers may be offloaded, the first accelerator, and the CPU for layers on disk, reserve memory for the largest
    remaining layer; an accelerator that runs offloaded modules reserves it for two, because one is prefetched,
    unless nothing of the model would then be left on it. A layer that is too large for an empty device goes to the
    next. Tied weights stay together.

    Args:
        model: On any device, meta included.
        max_memory: As for `get_max_memory`; the rest goes to the disk, which is unlimited unless
            ``"disk"`` is given.
        no_split_module_classes: Names of classes that stay on one device.
        dtype: The dtype that floating-point weights will be converted to.
        special_dtypes: Exceptions, by name of the tensor.
        verbose: Log each decision at level INFO.
        clean_result: Name a module instead of all its parts if they share a device.
        offload_buffers: Offload the buffers of offloaded modules too; otherwise they need room on the first device.
        fallback_allocation: If the next part does not fit, search the remaining ones, the largest first, for one that
            does.

    Raises:
        ConfigError: If the model does not fit; the message lists the free memory of each device.
    """
    not_split = _class_names(no_split_module_classes)
    limits = get_max_memory(max_memory)
    if not limits:
        raise ConfigError("`max_memory` names no device. Add one with its bytes, such as `{'cpu': '10GiB'}`.")
    reader = PieceReader(dtype=dtype, special_dtypes=special_dtypes, not_split=not_split)
    root = reader.read(model)
    planner = _Planner(root, limits, verbose=verbose, uses_fallback=fallback_allocation)
    planner.run()
    if not planner.has_room_to_prefetch():
        roomy = _Planner(root, limits, verbose=verbose, uses_fallback=fallback_allocation, num_loaded=2)
        roomy.run()
        if roomy.uses_main_device() or not planner.uses_main_device():
            planner = roomy
        else:
            planner.warn_of_prefetching()
    planner.require_room()
    planner.log_unused_devices()
    planner.warn_of_oversized_layers()
    if not offload_buffers:
        planner.warn_of_buffers()
    return clean_device_map(planner.device_map) if clean_result else planner.device_map


def device_map_of_mode(
    mode: str,
    model: nn.Module,
    max_memory: MaxMemory | None,
    no_split_module_classes: Sequence[str] | None,
    *,
    dtype: Dtype | None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    offload_buffers: bool = False,
) -> dict[str, int | str]:
    """Return the device map for a mode of `load_checkpoint_and_dispatch`.

    Raises:
        UnknownNameError: If there is no such mode.
    """
    if mode not in _MODES:
        raise UnknownNameError.of("`device_map`", mode, _MODES)
    if mode != "sequential":
        max_memory = get_balanced_memory(
            model,
            max_memory,
            no_split_module_classes,
            dtype,
            special_dtypes,
            low_zero=mode == "balanced_low_0",
        )
    return infer_auto_device_map(
        model, max_memory, no_split_module_classes, dtype, special_dtypes, offload_buffers=offload_buffers
    )


def generate_device_map(
    model: nn.Module,
    num_processes: int = 1,
    no_split_module_classes: Sequence[str] | None = None,
    max_memory: MaxMemory | None = None,
) -> dict[str, int | str]:
    """Return a device map that splits ``model`` evenly between ``num_processes`` devices.

        generate_device_map(model, num_processes=2, no_split_module_classes=["Block"])

    Args:
        model: On any device.
        num_processes: Devices, numbered from 0.
        no_split_module_classes: Names of classes that stay on one device.
        max_memory: As for `get_max_memory`. Default: equal shares.
    """
    if max_memory is None and num_processes > 1:
        num_bytes, (largest, _) = calculate_maximum_sizes(model)
        share = -(-num_bytes // num_processes) + largest
        max_memory = dict.fromkeys(range(num_processes), share)
    return infer_auto_device_map(
        model, max_memory=max_memory, no_split_module_classes=no_split_module_classes, clean_result=False
    )


class _Planner:
    """Assigns the pieces of one model to devices."""

    def __init__(
        self,
        root: Piece,
        limits: Mapping[int | str, int],
        *,
        verbose: bool,
        uses_fallback: bool,
        num_loaded: int = 1,
    ) -> None:
        self.device_map: dict[str, int | str] = {}
        self._limits = {**limits, "disk": limits.get("disk", 1 << 62)}  # no limit
        self._log_level = logging.INFO if verbose else logging.DEBUG
        self._uses_fallback = uses_fallback
        self._num_loaded = num_loaded
        self._layers = list(root.layers())
        self._remaining = root.num_bytes
        self._used = dict.fromkeys(self._limits, 0)
        self._buffers = dict.fromkeys(self._limits, 0)
        self._placed: set[Piece] = set()
        self._must_split: set[Piece] = set()
        self._waiting: deque[Piece] = deque(root.children or [root])
        self._owners: dict[int, list[Piece]] = {}
        for layer in self._layers:
            for key in layer.tied:
                self._owners.setdefault(key, []).append(layer)
        accelerators = [device for device in limits if device not in ("cpu", "disk")]
        self._main: int | str = accelerators[0] if accelerators else "cpu"

    def run(self) -> None:
        """Fill the devices in order.

        Raises:
            ConfigError: If parts remain.
        """
        for device in [device for device in self._limits if device != "disk"]:
            self._fill(device, keeps_room=device in (self._main, "cpu"))
        self._fill("disk", keeps_room=False)

    def require_room(self) -> None:
        """Raise if the devices have no room for the model."""
        if any(piece not in self._placed for piece in self._waiting):
            raise ConfigError(self._what_is_missing())

    def log_unused_devices(self) -> None:
        """Log the devices that were too small for any part, if a later device was used."""
        used = [device for device, size in self._used.items() if size]
        for device, limit in self._limits.items():
            if device in used:
                break
            if limit:
                logger.info(
                    "No part of the model fits on device `%s` (%s): insufficient memory.",
                    device,
                    convert_bytes(limit),
                )

    def warn_of_buffers(self) -> None:
        """Warn if the device that runs offloaded modules lacks room for their buffers and for the largest of them."""
        needed = sum(self._buffers.get(device, 0) for device in self._offload_devices)
        largest = max((layer.num_bytes for layer in self._offloaded_layers()), default=0)
        room = self._limits.get(self._main, 0) - self._used.get(self._main, 0)
        if needed and needed + largest > room:
            warn_user(
                f"Buffers of offloaded modules ({convert_bytes(needed)}) stay on device `{self._main}`, which has "
                f"{convert_bytes(max(room, 0))} left for them and the largest offloaded layer "
                f"({convert_bytes(largest)}). Pass `offload_buffers=True` to offload them too.",
                main_process_only=False,
            )

    def warn_of_oversized_layers(self) -> None:
        """Warn about offloaded layers that are larger than the device that would run them."""
        limit = self._limits.get(self._main, 0)
        for layer in self._offloaded_layers():
            if layer.num_bytes > limit:
                warn_user(
                    f"The layer `{layer.name}` takes {convert_bytes(layer.num_bytes)} and device `{self._main}` has "
                    f"{convert_bytes(limit)}: the map offloads it, but it cannot be loaded there to run. "
                    "Raise `max_memory` of the device.",
                    main_process_only=False,
                )
                return

    def has_room_to_prefetch(self) -> bool:
        """Whether the accelerator that runs offloaded modules has room for two of them."""
        largest = max((layer.loaded_bytes for layer in self._offloaded_layers()), default=0)
        return self._main == "cpu" or self._used[self._main] + 2 * largest <= self._limits[self._main]

    def uses_main_device(self) -> bool:
        """Whether the full model fits, with a part of it on the accelerator that runs offloaded modules."""
        return bool(self._used[self._main]) and all(piece in self._placed for piece in self._waiting)

    def warn_of_prefetching(self) -> None:
        """Warn that the limit of this device has room for one offloaded module, and none for one that is prefetched."""
        logger.warning(
            "Device `%s` may hold %s: this has room for one offloaded module at a time, and the next one is copied "
            "while it runs. Pass `prefetch=False` to `dispatch_model` to stay below it.",
            self._main,
            convert_bytes(self._limits[self._main]),
        )

    @property
    def _offload_devices(self) -> tuple[str, ...]:
        return ("disk",) if self._main == "cpu" else ("cpu", "disk")

    def _offloaded_layers(self) -> Iterator[Piece]:
        places = [device for device in self._offload_devices if self._used.get(device)]
        layers = self._layers if places else []
        return (layer for layer in layers if device_of(layer.name, self.device_map) in places)

    def _fill(self, device: int | str, *, keeps_room: bool) -> None:
        limit = self._limits[device]
        num_loaded = self._num_loaded if device == self._main else 1
        reserves = self._reserves(limit, num_loaded) if keeps_room else []
        too_large: list[Piece] = []
        while self._waiting:
            piece = self._waiting.popleft()
            if piece in self._placed:
                continue
            if piece in self._must_split:
                self._waiting.extendleft(reversed(piece.children))
                continue
            tied_layers = self._tied_layers(piece)
            size = piece.num_bytes + sum(layer.num_bytes for layer in tied_layers)
            # If all remaining parts fit here, no layer is offloaded, and none needs a reserve.
            fits_all = self._used[device] + self._remaining <= limit
            reserve = reserves[piece.rank] if reserves and not fits_all else 0
            if self._used[device] + size + reserve <= limit:
                self._place([piece, *tied_layers], device)
            elif piece.children:
                self._waiting.extendleft(reversed(piece.children))
            elif size > limit > 0 and self._used[device] == 0:
                self._log("`%s` (%s) is larger than device `%s`, deferred to the next", piece, device)
                too_large.append(piece)
            else:
                self._waiting.appendleft(piece)
                if not (self._uses_fallback and self._place_another(device, limit - reserve)):
                    self._log("`%s` (%s) does not fit on `%s`", piece, device)
                    break
        self._waiting.extendleft(reversed(too_large))

    def _reserves(self, limit: int, num_loaded: int) -> list[int]:
        """Return, for each layer, the largest size of it and its successors that this device could load.

        That is a layer, or ``num_loaded`` modules if these are larger in total.
        """
        reserves = [0] * len(self._layers)
        largest = 0
        for rank in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[rank]
            for size in (layer.num_bytes, num_loaded * layer.loaded_bytes):
                if largest < size <= limit:
                    largest = size
            reserves[rank] = largest
        return reserves

    def _tied_layers(self, piece: Piece) -> list[Piece]:
        """Return the layers outside ``piece`` that are tied to it, directly or through others."""
        if not piece.tied:
            return []
        layers: dict[Piece, None] = {}
        keys = list(piece.tied)
        for key in keys:
            for layer in self._owners.get(key, ()):
                if layer not in layers and layer not in self._placed and not _is_inside(layer, piece):
                    layers[layer] = None
                    keys.extend(layer.tied.difference(keys))
        return list(layers)

    def _place(self, pieces: Iterable[Piece], device: int | str) -> None:
        for piece in pieces:
            self.device_map[piece.name] = device
            self._used[device] += piece.num_bytes
            self._buffers[device] += piece.buffer_bytes
            self._remaining -= piece.num_bytes
            self._placed.add(piece)
            self._log("`%s` (%s) goes to `%s`", piece, device)
            around = piece.parent
            while around is not None and around not in self._must_split:
                self._must_split.add(around)
                around = around.parent

    def _place_another(self, device: int | str, limit: int) -> bool:
        """Place the first piece, in breadth-first order, that fits into the remaining memory."""
        room = limit - self._used[device]
        level = deque(self._waiting)
        while level:
            piece = level.popleft()
            if piece in self._placed:
                continue
            if piece not in self._must_split and not piece.tied and 0 < piece.num_bytes <= room:
                self._place([piece], device)
                return True
            level.extend(piece.children)
        return False

    def _what_is_missing(self) -> str:
        left = [piece for piece in self._waiting if piece not in self._placed]
        rooms = [
            f"`{device}` has {convert_bytes(self._used[device])} of {convert_bytes(limit)} in use"
            for device, limit in self._limits.items()
        ]
        return (
            f"The model does not fit: {convert_bytes(self._remaining)} remain, starting with `{left[0].name}` "
            f"({convert_bytes(left[0].num_bytes)}). {'; '.join(rooms)}. Increase `max_memory` of a device."
        )

    def _log(self, message: str, piece: Piece, device: int | str) -> None:
        if logger.isEnabledFor(self._log_level):
            logger.log(self._log_level, message, piece.name, convert_bytes(piece.num_bytes), device)


def _is_inside(piece: Piece, other: Piece) -> bool:
    around: Piece | None = piece
    while around is not None and around is not other:
        around = around.parent
    return around is other


def _class_names(given: Sequence[str] | str | None) -> Sequence[str]:
    return (given,) if isinstance(given, str) else tuple(given or ())
