"""Stand-ins for an optimizer and a scheduler that the DeepSpeed config defines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any


class DummyOptim:
    """Says which parameters are trained, and how fast, where the DeepSpeed config has an ``optimizer``.

    `prepare` makes the optimizer of that section, and fills what is ``"auto"`` there with these values.

    Args:
        params: Parameters or parameter groups, as for an optimizer.
        lr: The learning rate.
        weight_decay: The weight decay.
        **kwargs: Further arguments of the optimizer: ``betas`` and ``eps`` fill what is ``"auto"``.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 0.001, weight_decay: float = 0, **kwargs: Any
    ) -> None:
        self.params = params if isinstance(params, (list, tuple)) else list(params)
        self.lr = lr
        self.weight_decay = weight_decay
        self.kwargs = kwargs

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters as groups, which is how an optimizer has them."""
        groups = [group for group in self.params if isinstance(group, Mapping)]
        single = [parameter for parameter in self.params if not isinstance(parameter, Mapping)]
        return [*map(dict, groups), *([{"params": single}] if single else [])]

    if TYPE_CHECKING:  # `prepare` returns an optimizer for it

        def __getattr__(self, name: str) -> Any: ...


class DummyScheduler:
    """Says how long a schedule is where the DeepSpeed config has a ``scheduler``, or makes one for its optimizer.

    Args:
        optimizer: The `DummyOptim`, or the optimizer.
        total_num_steps: The length of the whole schedule.
        warmup_num_steps: The length of its warm-up.
        lr_scheduler_callable: Makes the scheduler from the optimizer that DeepSpeed has made, where the config has
            no ``scheduler``.
        **kwargs: Kept as the attribute ``kwargs``.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable
        self.kwargs = kwargs

    if TYPE_CHECKING:  # `prepare` returns a scheduler for it

        def __getattr__(self, name: str) -> Any: ...
