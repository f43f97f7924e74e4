"""Which optimizer and which scheduler of one `prepare` belong to which model, and which combinations there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from accel_backends.strategies.deepspeed.dummies import DummyOptim, DummyScheduler
from accel_state.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """A model with the optimizer and the scheduler that it is trained with; without an optimizer it is not trained."""

    model: nn.Module
    optimizer: Any = None
    scheduler: Any = None


def pair(models: Sequence[nn.Module], optimizers: Sequence[Any], schedulers: Sequence[Any]) -> list[Part]:
    """Return one part per model, in their order.

    Raises:
        ConfigError: If an optimizer has not exactly one model, a model more than one optimizer, or an optimizer more
            than one scheduler that DeepSpeed is to make.
    """
    owners = {id(parameter): index for index, model in enumerate(models) for parameter in model.parameters()}
    of_model: dict[int, Any] = {}
    for optimizer in optimizers:
        index = _model_of(optimizer, owners)
        if index in of_model:
            raise ConfigError(
                f"Two optimizers, {_name(of_model[index])} and {_name(optimizer)}, step parameters of one model "
                f"({_name(models[index])}), whose engine has one. Put the parameters into groups of one optimizer."
            )
        of_model[index] = optimizer
    parts = []
    for index, model in enumerate(models):
        optimizer = of_model.get(index)
        own = [scheduler for scheduler in schedulers if _is_of(scheduler, optimizer, optimizers)]
        dummies = [scheduler for scheduler in own if isinstance(scheduler, DummyScheduler)]
        if len(dummies) > 1:
            raise ConfigError(
                f"There are {len(dummies)} `DummyScheduler` for one optimizer, of which DeepSpeed makes one schedule. "
                "Prepare one."
            )
        parts.append(Part(model, optimizer, next(iter(dummies or own), None)))
    return parts


def check_combination(part: Part, config: Mapping[str, Any]) -> None:
    """Refuse an optimizer or a scheduler that the config contradicts.

    Raises:
        ConfigError: Saying what to change.
    """
    optimizer, scheduler = part.optimizer, part.scheduler
    is_dummy = isinstance(optimizer, DummyOptim)
    if is_dummy and "optimizer" not in config:
        raise ConfigError(
            "A `DummyOptim` stands for the optimizer of the DeepSpeed config, which has none. Add an `optimizer` "
            "section there, or prepare an optimizer of torch's."
        )
    if optimizer is not None and not is_dummy and "optimizer" in config:
        raise ConfigError(
            f"There are two optimizers: `{config['optimizer'].get('type')}` in the DeepSpeed config, and "
            f"`{type(optimizer).__name__}` in the script. Remove the `optimizer` section, or prepare a `DummyOptim`."
        )
    if scheduler is None:
        return
    if isinstance(scheduler, DummyScheduler):
        makes_own = scheduler.lr_scheduler_callable is not None
        if makes_own and "scheduler" in config:
            raise ConfigError(
                "There are two schedulers: one in the DeepSpeed config, and the `lr_scheduler_callable` of the "
                "`DummyScheduler`. Remove one of them."
            )
        if not makes_own and "scheduler" not in config:
            raise ConfigError(
                "A `DummyScheduler` stands for the scheduler of the DeepSpeed config, which has none. Add a "
                "`scheduler` section there, or give the `DummyScheduler` an `lr_scheduler_callable`."
            )
        return
    if "scheduler" in config:
        raise ConfigError(
            f"There are two schedulers: `{config['scheduler'].get('type')}` in the DeepSpeed config, and "
            f"`{type(scheduler).__name__}` in the script. Remove the `scheduler` section, or prepare a "
            "`DummyScheduler`."
        )
    if is_dummy:
        raise ConfigError(
            f"`{type(scheduler).__name__}` needs an optimizer, but DeepSpeed makes that of its config later. Prepare "
            "`DummyScheduler(optimizer, lr_scheduler_callable=...)`, which makes the scheduler from it."
        )


def parameters_of(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters that an optimizer steps, or a `DummyOptim` stands for."""
    for group in optimizer.param_groups:
        yield from group["params"]


def refuse_without_model(optimizer: Any) -> NoReturn:
    """Say that an optimizer has no model.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"The {_name(optimizer)} steps parameters of no model in this call of `prepare`. DeepSpeed's engine is made "
        "from a model together with its optimizer: prepare both in one call."
    )


def _model_of(optimizer: Any, owners: Mapping[int, int]) -> int:
    found = {owners.get(id(parameter)) for parameter in parameters_of(optimizer)}
    known = {index for index in found if index is not None}
    if not known:
        refuse_without_model(optimizer)
    if len(known) > 1 or None in found:
        raise ConfigError(
            f"The {_name(optimizer)} steps parameters of {'several models' if len(known) > 1 else 'a model and others'}"
            "; DeepSpeed's engine has one model. Make one optimizer for each model."
        )
    return known.pop()


def _is_of(scheduler: Any, optimizer: Any, optimizers: Sequence[Any]) -> bool:
    own = getattr(scheduler, "optimizer", None)
    if optimizer is None:
        return False
    return own is optimizer or (len(optimizers) == 1 and not any(own is other for other in optimizers))


def _name(thing: Any) -> str:
    return f"`{type(thing).__name__}`"
