"""The gradients that an engine keeps: their norm, their scale, a limit for the next step, and an end without a step.

Where they are depends on the engine's optimizer: in the parameters, in a flat vector, in parts of one, on another
device. These are the only places of DeepSpeed's optimizers that are read or set here.
"""

from __future__ import annotations

import math
from typing import Any

import torch


# Why: docs/decisions/0013-deepspeed-steps-when-the-script-does.md
class EngineGradients:
    """The complete gradients of one engine, between the last backward of an accumulation and the step."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._optimizer = engine.optimizer
        self.configured_limit: float = engine.gradient_clipping()  # of their norm; 0.0: none

    def norm(self) -> torch.Tensor | None:
        """Return the 2-norm of all of them, infinite if one is not finite. Communicates: all ranks.

        None where the config tells the engine not to compute it.
        """
        raise NotImplementedError

    def scale(self, factor: float) -> None:
        """Multiply all of them."""
        raise NotImplementedError

    def limit(self, max_norm: float) -> None:
        """Clip them to this norm in the next step; 0.0: not at all."""
        self._optimizer.clip_grad = max_norm

    def stepped(self) -> None:
        """Reset what was set for one step."""
        self.limit(self.configured_limit)

    def discard(self) -> None:
        """Forget them, complete or not."""
        raise NotImplementedError


def gradients_of(engine: Any) -> EngineGradients:
    """Return the gradients of an engine that trains."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    if isinstance(engine.optimizer, DeepSpeedZeroOptimizer_Stage3):
        return ShardedGradients(engine)
    if isinstance(engine.optimizer, DeepSpeedZeroOptimizer):
        return PartitionedGradients(engine)
    if isinstance(engine.optimizer, BF16_Optimizer):
        return FlatGradients(engine)
    return WholeGradients(engine)


class _ZeroGradients(EngineGradients):
    """Those of ZeRO: the step divides them by the loss scale, which is also how they are scaled here."""

    _norm_of_step: str
    """The method of DeepSpeed's optimizer whose result the step takes for the norm."""

    def norm(self) -> torch.Tensor | None:
        scaled = self._scaled_norm()
        return None if scaled is None else _finite_or_infinite(scaled) / float(self._optimizer.loss_scale)

    def _scaled_norm(self) -> Any:
        raise NotImplementedError

    def _measured(self) -> Any:
        """Return what the step takes for the norm, and let it take that, unless it first makes other updates (Muon)."""
        measured = getattr(self._optimizer, self._norm_of_step)()
        if not getattr(self._optimizer, "use_muon", False):
            setattr(self._optimizer, self._norm_of_step, lambda: measured)
        return measured

    def scale(self, factor: float) -> None:
        # What `override_loss_scale` does, which logs each call.
        self._optimizer.external_loss_scale = self._optimizer.loss_scale / factor
        self._optimizer.custom_loss_scaler = True

    def stepped(self) -> None:
        super().stepped()
        self._optimizer.custom_loss_scaler = False
        vars(self._optimizer).pop(self._norm_of_step, None)


class ShardedGradients(_ZeroGradients):
    """Those of ZeRO stage 3."""

    _norm_of_step = "_get_norm_groups"

    def _scaled_norm(self) -> Any:
        norms = torch.stack([_finite_or_infinite(norm) for norm in self._measured()])
        return torch.linalg.vector_norm(norms)

    def discard(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer._overflow_clean_up(self._optimizer.loss_scale)


class PartitionedGradients(_ZeroGradients):
    """Those of ZeRO stages 1 and 2."""

    _norm_of_step = "scaled_global_norm"

    def _scaled_norm(self) -> Any:
        optimizer = self._optimizer
        if not getattr(optimizer, "compute_grad_norm", True):  # since DeepSpeed 0.19.7
            return None
        from deepspeed.runtime import utils

        if hasattr(utils, "combine_grad_norm_groups") or optimizer.has_moe_layers:
            return self._measured()
        # Up to DeepSpeed 0.19.7, groups that are not finite, each -1, come out as one finite norm.
        norms = [
            optimizer.complete_grad_norm_calculation_for_cpu_offload(members)
            if optimizer.cpu_offload
            else optimizer.get_grad_norm_direct(optimizer.averaged_gradients[index], members)
            for index, members in enumerate(optimizer.params_in_partition)
        ]
        return torch.linalg.vector_norm(torch.stack([_finite_or_infinite(norm) for norm in norms]))

    def discard(self) -> None:
        optimizer = self._optimizer
        optimizer.zero_grad(set_to_none=True)
        optimizer.micro_step_id = -1
        if hasattr(optimizer, "_release_preflattened_grad_buffers"):  # in none of DeepSpeed up to 0.19.1
            optimizer._release_preflattened_grad_buffers()
        if optimizer.cpu_offload:
            optimizer.reset_cpu_buffers()
            return
        for index in optimizer.averaged_gradients:
            optimizer.averaged_gradients[index] = None
            optimizer.all_grad_tensors[index] = None


class FlatGradients(EngineGradients):
    """Those of ZeRO stage 1 in bfloat16, which are sums in fp32."""

    def norm(self) -> torch.Tensor | None:
        from deepspeed.runtime.utils import get_global_norm_of_tensors

        gradients, _ = self._optimizer.get_grads_for_norm()
        return _finite_or_infinite(
            get_global_norm_of_tensors(input_tensors=gradients, mpu=self._optimizer.mpu, norm_type=2)
        )

    def scale(self, factor: float) -> None:
        torch._foreach_mul_(self._optimizer.fp32_groups_gradients_flat, factor)

    def discard(self) -> None:
        self._optimizer.zero_grad()


class WholeGradients(EngineGradients):
    """Those of the parameters, without ZeRO."""

    def norm(self) -> torch.Tensor | None:
        norm = self._norm()
        scaling = getattr(self._optimizer, "loss_scale_config", None)
        if scaling is not None and scaling.use_grad_scaling:
            norm = norm / scaling.cur_scale
        return _finite_or_infinite(norm)

    def _norm(self) -> torch.Tensor:
        mpu = self._engine.mpu
        if self._engine.mp_world_size == 1:
            return torch.nn.utils.get_total_norm([gradient.float() for gradient in self._tensors()])
        from deepspeed.runtime.utils import get_global_norm_of_tensors, is_model_parallel_parameter

        # What all ranks have counts on one of those that share layers.
        own = [
            weight.grad
            for weight in self._engine.module.parameters()
            if weight.grad is not None
            and (is_model_parallel_parameter(weight) or not mpu.get_model_parallel_rank())
        ]
        norm: torch.Tensor = get_global_norm_of_tensors(input_tensors=own, mpu=mpu, norm_type=2)
        return norm

    def scale(self, factor: float) -> None:
        if tensors := self._tensors():
            torch._foreach_mul_(tensors, factor)

    def limit(self, max_norm: float) -> None:
        if hasattr(self._optimizer, "clip_grad"):
            super().limit(max_norm)
        else:
            self._engine._config.gradient_clipping = max_norm

    def discard(self) -> None:
        self._engine.zero_grad()

    def _tensors(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self._engine.module.parameters() if weight.grad is not None]


def _finite_or_infinite(norm: torch.Tensor | float) -> torch.Tensor:
    """Return a norm of DeepSpeed's, which writes -1 for what is not finite."""
    found = torch.as_tensor(norm, dtype=torch.float32)
    return torch.where(found.isfinite() & (found >= 0), found, math.inf)
