"""A model of megatron-core with its optimizer: what `prepare` returns in place of a model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.strategies.megatron.loaders import iterators_for, micro_batches
from accel_backends.strategies.megatron.packages import check_device, core
from accel_backends.strategies.megatron.train_steps import StepOutput
from accel_state.errors import ConfigError, StateError
from accel_state.logging import get_logger

if TYPE_CHECKING:
    from accel_backends.strategies.megatron.train_steps import AbstractTrainStep

logger = get_logger(__name__)


class MegatronEngine(nn.Module):
    """Runs forward and backward of all micro-batches of a batch when it is called for training.

    Args:
        accelerator: What an `Accelerator` shows of the run: ``state``, ``device``.
        model: This rank's parts of the model.
        optimizer: What steps it, None for a model that only computes outputs.
        scheduler: What moves its learning rate, if anything does.
        train_step_handler: The train step.

    Attributes:
        grad_norm: Norm of all gradients of the last step, before they were clipped.
    """

    def __init__(
        self,
        accelerator: Any,
        model: list[nn.Module],
        optimizer: Any,
        scheduler: Any,
        *,
        train_step_handler: AbstractTrainStep,
    ) -> None:
        super().__init__()
        self.train_step_handler = train_step_handler
        self.parts = nn.ModuleList(model)
        self.accelerator = accelerator
        self.plugin = accelerator.state.megatron_lm_plugin
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.grad_norm: float | None = None
        self.loss_weight = 1.0
        self.last_loss: torch.Tensor | None = None
        self.has_gradients = False
        self._evaluated_loss: torch.Tensor | None = None
        self._num_evaluated = 0

    @property
    def chunks(self) -> list[nn.Module]:
        """This rank's parts of the model, in the order of the pipeline."""
        return list(self.parts)

    def forward(self, **batch_data: Any) -> Any:
        """Compute the loss of a batch, and in training its gradients.

        All ranks together; those of one data rank give the same batch.

        Raises:
            NotAvailableError: Without a CUDA device.
        """
        is_trained = self.training and torch.is_grad_enabled()
        return self.train_step(**batch_data) if is_trained else self.eval_step(**batch_data)

    def train_step(self, **batch_data: Any) -> Any:
        """Compute the gradients of a batch; `optimizer.step` then steps.

        Raises:
            StateError: If the gradients of the batch before wait for their step.
            ConfigError: If there is no optimizer.
        """
        if self.optimizer is None:
            raise ConfigError(
                "The model was prepared without an optimizer, so that it computes outputs only. Call `model.eval()`, "
                "or prepare it together with its optimizer."
            )
        if self.has_gradients:
            raise StateError(
                "The model got a second batch for training before the first was stepped. Call `optimizer.step()` or "
                "`optimizer.zero_grad()` in between; `num_micro_batches` of the MegatronLMPlugin accumulates gradients."
            )
        self.discard_gradients()
        reported, number = self._run(batch_data, forward_only=False)
        self.has_gradients = True
        output = self._output(reported, number)
        self.last_loss = output.loss
        return self._returned(output)

    def eval_step(self, **batch_data: Any) -> Any:
        """Compute the loss of a batch."""
        with torch.no_grad():
            output = self._output(*self._run(batch_data, forward_only=True))
        self._evaluated_loss = output.loss + (0.0 if self._evaluated_loss is None else self._evaluated_loss)
        self._num_evaluated += 1
        return self._returned(output)

    def step_optimizer(self) -> bool:
        """Clip and step; return False if an overflow left the step out. All ranks together."""
        is_stepped, self.grad_norm, _ = self.optimizer.step()
        self.has_gradients = False
        return bool(is_stepped)

    def discard_gradients(self) -> None:
        """Set all gradients to zero."""
        for part in self.parts:
            part.zero_grad_buffer()  # type: ignore[operator]
        self.optimizer.zero_grad()
        self.has_gradients = False

    def get_batch_data_iterator(self, batch_data: Mapping[str, Any]) -> list[Iterator[dict[str, Any]]]:
        """Return an iterator over the micro-batches of a batch for each part of the model."""
        return iterators_for(
            micro_batches(batch_data, self.plugin.num_micro_batches), num_models=len(self.parts)
        )

    def get_module_config(self) -> Any:
        """Return the `megatron.core.transformer.TransformerConfig` of the model."""
        return core("utils").get_model_config(self.parts[0])

    def log_eval_results(self) -> float | None:
        """Log the mean loss of the batches evaluated since the last call, and return it; None if there were none."""
        if self._evaluated_loss is None:
            return None
        mean = self._evaluated_loss.item() / self._num_evaluated
        self._evaluated_loss, self._num_evaluated = None, 0
        logger.info("evaluation loss %.6f", mean)
        return mean

    def save_checkpoint(self, output_dir: str) -> None:
        """Refuse: a run is saved whole.

        Raises:
            StateError: With what to call.
        """
        raise StateError(
            "A model of Megatron-LM is saved with its run. Call `accelerator.save_state(folder)`."
        )

    def load_checkpoint(self, input_dir: str) -> None:
        """Refuse: a run is loaded whole.

        Raises:
            StateError: With what to call.
        """
        raise StateError(
            "A model of Megatron-LM is loaded with its run. Call `accelerator.load_state(folder)`."
        )

    def megatron_generate(
        self, inputs: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> Any:
        """Continue rows of tokens; see `accel_backends.strategies.megatron.generation.generate`."""
        from accel_backends.strategies.megatron.generation import generate

        return generate(self, inputs, attention_mask, **options)

    @contextmanager
    def weighted(self, weight: float) -> Iterator[None]:
        """Multiply what gradients are computed of in this block."""
        before, self.loss_weight = self.loss_weight, weight
        try:
            yield
        finally:
            self.loss_weight = before

    def run_schedule(
        self,
        forward_step: Callable[..., Any],
        parts: list[dict[str, Any]],
        *,
        forward_only: bool,
        collects_outputs: bool = False,
    ) -> list[Any]:
        """Run megatron-core's schedule over the micro-batches, and return what the last stage reported of each."""
        check_device()
        length = next(
            (one.shape[1] for one in parts[0].values() if isinstance(one, torch.Tensor) and one.ndim > 1), 1
        )
        run = core("pipeline_parallel").get_forward_backward_func()
        reported: list[Any] = run(
            forward_step_func=forward_step,
            data_iterator=iterators_for(parts, num_models=len(self.parts)),
            model=self.chunks,
            num_microbatches=len(parts),
            seq_length=length,
            micro_batch_size=self.plugin.micro_batch_size or 1,
            decoder_seq_length=self.plugin.decoder_seq_length,
            forward_only=forward_only,
            collect_non_loss_data=collects_outputs,
        )
        return reported

    def _run(self, batch: Mapping[str, Any], *, forward_only: bool) -> tuple[list[dict[str, Any]], int]:
        parts = micro_batches(batch, self.plugin.num_micro_batches)
        num_parts, config = len(parts), self.get_module_config()
        if config.virtual_pipeline_model_parallel_size and num_parts % config.pipeline_model_parallel_size:
            raise ConfigError(
                f"The batch has {num_parts} micro-batches, but with `num_layers_per_virtual_pipeline_stage` their "
                f"number must be a multiple of `pp_degree` {config.pipeline_model_parallel_size}. Choose "
                "`num_micro_batches` so, and `drop_last=True` for the loader."
            )
        return self.run_schedule(self._forward_step, parts, forward_only=forward_only), num_parts

    def _forward_step(self, data_iterator: Iterator[Any], model: Any) -> tuple[Any, Callable[..., Any]]:
        output, loss_func = self.train_step_handler.forward_step(data_iterator, model)
        return output, partial(self._weighted_loss, loss_func)

    def _weighted_loss(self, loss_func: Callable[..., Any], output: Any) -> Any:
        loss, *rest = loss_func(output)
        return (loss if self.loss_weight == 1 else loss * self.loss_weight, *rest)

    def _output(self, reported: list[dict[str, Any]], num_parts: int) -> StepOutput:
        """Return the mean of the losses on every stage; only the last has computed them."""
        state = core("parallel_state")
        loss = torch.zeros((), device=self.accelerator.device)
        logits = None
        if reported:
            of_parts = [
                sum(value.float() for name, value in one.items() if name.endswith("loss")) for one in reported
            ]
            loss = torch.stack([cast(torch.Tensor, one) for one in of_parts]).mean()
            if "logits" in reported[0]:
                logits = torch.cat([one["logits"] for one in reported])
        group = state.get_pipeline_model_parallel_group()
        if group.size() > 1:
            dist.broadcast(loss, src=state.get_pipeline_model_parallel_last_rank(), group=group)
        return StepOutput(loss, logits)

    def _returned(self, output: StepOutput) -> Any:
        is_named = self.plugin.megatron_lm_default_args.get("model_return_dict", True)
        return output if is_named else tuple(value for value in output if value is not None)
