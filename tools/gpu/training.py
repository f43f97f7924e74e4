"""Training steps by plain torch, through accel and through Accelerate: of a tiny model and of Llamas."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from tools.gpu import bench
from tools.gpu.bench import DEVICE, IS_CUDA, LIBRARIES

Step = Callable[[], torch.Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "accumulation over 4": {"accumulate": 4},
    "clipping, scheduler": {"clips": True},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16, fused AdamW": {"precision": "fp16", "fused": True},
    "accumulation, `num_items` on the device": {"accumulate": 4, "items": True},
}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
COMPILER: dict[str, Any] = {"backend": "aot_eager" if bench.IS_SMALL else "inductor", "dynamic": False}


def step_of(
    ours: Any, model: Any, optimizers: Any, loss_of: Any, *, precision: str = "no", accumulate: int = 1,
    clips: bool = False, items: bool = False,
) -> Step:  # fmt: skip
    """Return a step through an `Accelerator`, or by plain torch if ``ours`` is None.

    ``loss_of`` is given the model; ``clips`` is with a scheduler, too; ``items`` weighs micro-batches by a number on
    the device.
    """
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda step: 1.0)] if clips else []
    num_items = torch.tensor(32.0, device=DEVICE)
    if ours is not None:
        model, *stepping = ours.prepare(model, *optimizers, *schedulers)
        more = {"num_items": num_items} if items else {}

        def step() -> torch.Tensor:
            with nullcontext() if accumulate == 1 else ours.accumulate(model):
                loss: torch.Tensor = loss_of(model)
                ours.backward(loss, **more)
                if clips:
                    ours.clip_grad_norm_(model.parameters(), 1.0)
                for each in stepping:
                    each.step()
                for each in stepping[: len(optimizers)]:
                    each.zero_grad()
            return loss.detach()

        return step
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "fp16")
    weight = num_items / (num_items * accumulate) if items else 1 / accumulate
    calls = itertools.count(1)

    def step_by_hand() -> torch.Tensor:
        with nullcontext() if dtype is None else torch.autocast(DEVICE.type, dtype):
            loss: torch.Tensor = loss_of(model)
        loss = loss if accumulate == 1 else loss * weight
        torch.autograd.backward(scaler.scale(loss))
        if next(calls) % accumulate:
            return loss.detach()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for scheduler in schedulers:
            scheduler.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return loss.detach()

    return step_by_hand


def repeated(step: Step, count: int) -> list[torch.Tensor]:
    """Return the losses of so many steps."""
    return [step() for _ in range(count)]


def host_waits(step: Step, *, count: int = 8) -> tuple[float, str]:
    """Return how often a step makes the host wait for the GPU, and where."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        repeated(step, count)
        torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    return len(waits) / count, ", ".join({f"{Path(each.filename).name}:{each.lineno}" for each in waits})


def step() -> None:
    """Put a row for each kind of loop over a tiny model; Accelerate has no `num_items`."""
    inputs, labels = torch.randn(32, 64, device=DEVICE), torch.randint(10, (32,), device=DEVICE)
    num_steps, num_rounds = (100, 7) if IS_CUDA else (5, 3)

    def loss_of(model: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs), labels)

    def made(library: str, *, fused: bool = False, **options: Any) -> Step:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        count, precision = options.get("accumulate", 1), options.get("precision", "no")
        ours = bench.accelerator(library, mixed_precision=precision, gradient_accumulation_steps=count)
        return step_of(ours, model, [optimizer], loss_of, **options)

    for kind, options in KINDS.items():
        steps = {library: made(library, **options) for library in LIBRARIES[: 2 if "items" in options else 3]}
        repeats = {name: partial(repeated, one, num_steps) for name, one in steps.items()}
        seconds = {name: statistics.median(each) for name, each in bench.rounds(repeats, num_rounds).items()}
        figures = {name: round(1e6 * each / num_steps, 1) for name, each in seconds.items()}
        plain, ours = (float(steps[name]()) for name in LIBRARIES[:2])
        waits = {name: host_waits(steps[name]) if IS_CUDA else (0, "") for name in LIBRARIES[:2]}
        note = ", ".join(f"{name} waits {count:g} times {places}" for name, (count, places) in waits.items())
        bench.put(f"a step of a tiny model: {kind}", "µs", figures, note=note, plain=1.15)
        assert math.isclose(ours, plain * options.get("accumulate", 1), rel_tol=0.02, abs_tol=0.002), kind
        assert waits["accel"][0] <= waits["plain"][0], f"{kind}: {note}"


@dataclass
class Llama:
    """A Llama with random weights and a batch: hidden and intermediate size, layers, heads, and vocabulary."""

    sizes: tuple[int, ...]
    batch: int = 4
    length: int = 4096
    num_timed: int = 8
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if bench.IS_SMALL:
            self.sizes, self.batch, self.length, self.num_timed = (64, 128, 4, 4, 256), 2, 32, 2
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(self.sizes[-1], (self.batch, self.length), generator=generator).to(DEVICE)

    def model(self, place: Any = DEVICE) -> Any:
        """Return a model, its weights made on the device or in the context ``place``."""
        from transformers import AutoModelForCausalLM, LlamaConfig

        model_class: Any = AutoModelForCausalLM
        torch.manual_seed(0)
        options: Any = dict(zip(SIZES, self.sizes, strict=True))
        options |= {"num_key_value_heads": min(8, self.sizes[3]), "max_position_embeddings": self.length}
        config = LlamaConfig(**options, tie_word_embeddings=False, use_cache=False)
        with place:
            return model_class.from_config(config, dtype=self.dtype).train()

    def loss(self, model: Any) -> Any:
        """Return the loss of the batch."""
        return model(input_ids=self.tokens, labels=self.tokens).loss

    def step(self, library: str, *, precision: str = "bf16", change: Any = None, optimizers: Any = None,
        compiles: bool = False, plugins: Any = None) -> Step:  # fmt: skip
        """Return a step.

        ``change`` is done to the model; ``optimizers`` makes them, else there is a fused AdamW; ``compiles`` is for
        blocks; ``plugins`` as in `bench.accelerator`.
        """
        model = change(self.model()) if change else self.model()
        for layer in model.model.layers if compiles and library == "plain" else ():
            layer.compile(**COMPILER)

        def settings(utils: Any) -> dict[str, Any]:
            dynamo = {"dynamo_plugin": utils.TorchDynamoPlugin(use_regional_compilation=True, **COMPILER)}
            return (plugins(utils) if plugins else {}) | (dynamo if compiles else {})

        ours = bench.accelerator(library, settings, mixed_precision=precision)
        adamw = partial(torch.optim.AdamW, lr=1e-5, fused=IS_CUDA)
        made = optimizers(model) if optimizers else [adamw(model.parameters())]
        return step_of(ours, model, made, self.loss, precision=precision)

    def put(self, row: str, ways: Any, *, tolerance: float = 0.02, flops: float = 0, **least: float) -> None:
        """Train in several ways, options of `step`, and put the row; a graph must not break where plain's does not."""
        figures, losses, breaks, note = {}, {}, {}, ""
        for name, options in ways.items():
            bench.clear()
            counters.clear()
            step = self.step(**{"library": name, **options})
            first = repeated(step, 3)
            more, seconds = bench.clocked(repeated, step, self.num_timed)
            figures[name] = round(self.num_timed * self.tokens.numel() / seconds)
            losses[name] = [loss.item() for loss in (*first, *more)]
            breaks[name], graphs = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
            compiled = f", {breaks[name]} breaks of {graphs} graphs" if graphs else ""
            note += f"{name}: peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB{compiled}; "
            del step
        note += f"MFU {flops * figures['accel'] / 989.4e12:.1%}" if flops else ""  # of an H100 or H200
        bench.put(row, "tokens/s", figures, note=note, **least)
        for pair in zip(losses["accel"], losses["plain"], strict=True):
            assert math.isclose(*pair, rel_tol=tolerance, abs_tol=0.1 * tolerance), f"{row}: {losses}"
        assert breaks["accel"] <= breaks["plain"], f"{row}: {note}"


SMALL = partial(Llama, (1024, 4096, 12, 8, 8192), batch=8, length=1024)


def fsdp2() -> None:
    """Put a row of FSDP 2 with activation checkpointing and compiled blocks, and `fully_shard` by hand."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    distributed.init_process_group("cpu:gloo,cuda:nccl" if IS_CUDA else "gloo")

    def sharded(model: Any) -> Any:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            layer.forward = torch.compile(partial(checkpoint, layer.forward, use_reentrant=False), **COMPILER)
            fully_shard(layer, mp_policy=policy)
        return fully_shard(model, mp_policy=policy, reshard_after_forward=False)

    def plugins(utils: Any) -> dict[str, Any]:
        plugin = partial(utils.FullyShardedDataParallelPlugin, auto_wrap_policy="transformer_based_wrap")
        layers = {"transformer_cls_names_to_wrap": ["LlamaDecoderLayer"]}
        return {"fsdp_plugin": plugin(fsdp_version=2, activation_checkpointing=True, **layers)}

    ways = {name: {"plugins": plugins, "compiles": True} for name in LIBRARIES[1:]}
    ways["plain"] = {"change": sharded, "precision": "no"}
    row = "FSDP 2, 1.3B Llama, checkpointing, blocks compiled"
    Llama((2048, 8192, 18, 16, 32768)).put(row, ways, plain=0.99)
    distributed.destroy_process_group()


def llama_8b() -> None:
    """Put rows of 8B parameters in bf16, with activations of all layers recomputed, and of as few as fit in 141 GB."""
    num_bytes = torch.cuda.mem_get_info()[0] if bench.HAS_GOALS else 141e9
    if num_bytes < 90e9:
        pytest.skip("needs 90 GB of free GPU memory")

    def change(model: Any, num_layers: int) -> Any:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in model.model.layers[num_layers:]:
            layer.gradient_checkpointing = False
        return model

    llama = Llama((4096, 14336, 32, 32, 128256), num_timed=4, dtype=torch.bfloat16)
    flops = 6 * 8_030_261_248 + 12 * 32 * 4096 * 4096  # attention counts whole, recomputation does not count
    for num_layers in (32, 12) if num_bytes > 130e9 else (32,):
        options = {"change": partial(change, num_layers=num_layers), "precision": "no", "compiles": True}
        row = f"8B Llama in bf16, {num_layers} of 32 layers checkpointed, blocks compiled"
        llama.put(row, dict.fromkeys(LIBRARIES[:2], options), flops=flops, plain=0.99)


def muon() -> None:
    """Put a row of torch's Muon for the matrices of the layers and AdamW for the rest."""

    def optimizers(model: Any) -> list[Any]:
        inner = dict.fromkeys(one for one in model.model.layers.parameters() if one.ndim == 2)
        others = [one for one in model.parameters() if one not in inner]
        return [torch.optim.Muon(list(inner), lr=1e-3, weight_decay=0.0), torch.optim.AdamW(others)]

    ways = {library: {"optimizers": optimizers} for library in LIBRARIES[:2]}
    SMALL().put("Muon and AdamW, 0.2B Llama, bf16", ways, plain=0.98)


def deepspeed() -> None:
    """Put a row of DeepSpeed's ZeRO 2 in fp16 with its own AdamW; plain is bf16."""
    adam = pytest.importorskip("deepspeed.ops.adam")
    if not IS_CUDA:
        pytest.skip("its AdamW needs a GPU")
    ours = {
        "optimizers": lambda model: [adam.FusedAdam(model.parameters(), lr=1e-5, weight_decay=1e-2)],
        "plugins": lambda utils: {"deepspeed_plugin": utils.DeepSpeedPlugin(zero_stage=2)},
        "precision": "fp16",
    }
    row = "DeepSpeed ZeRO 2, its AdamW, 0.2B Llama, fp16"
    SMALL().put(row, {"plain": {}, "accel": ours}, tolerance=0.05, plain=0.9)


def put_fp8(package: str, plugins: Any, *, change: Any = None, **goals: float) -> None:
    """Put a row of 8 bits; plain is bf16 without ``change``, and the bound is accel in bf16."""
    ways: Any = {name: {"precision": "fp8", "plugins": plugins} for name in LIBRARIES[1:]}
    ways |= {"plain": {"change": change}, "bound": {"library": "accel"}}
    ways = {name: {"compiles": True, **options} for name, options in ways.items()}
    blocks = Llama((4096, 14336, 4, 32, 1024))  # a small vocabulary, so that blocks are what is measured
    blocks.put(f"fp8 by {package}, four blocks of Llama-8B", ways, tolerance=0.05, **goals)


def fp8() -> None:
    """Put a row of 8 bits by torchao."""
    float8 = pytest.importorskip("torchao.float8")
    config = float8.Float8LinearConfig
    recipe = config.from_recipe_name("rowwise") if IS_CUDA else config(emulate=True)

    def is_in_block(module: nn.Module, name: str) -> bool:
        return ".layers." in f".{name}"

    def plugins(utils: Any) -> dict[str, Any]:
        return {"kwargs_handlers": [utils.AORecipeKwargs(config=recipe, module_filter_func=is_in_block)]}

    change = partial(float8.convert_to_float8_training, config=recipe, module_filter_fn=is_in_block)
    put_fp8("torchao", plugins, change=change, plain=0.98, bound=1.25)


def transformer_engine() -> None:
    """Put a row of 8 bits by Transformer Engine; plain is bf16."""
    pytest.importorskip("transformer_engine")
    plugins = lambda utils: {"kwargs_handlers": [utils.TERecipeKwargs()]}  # noqa: E731
    put_fp8("Transformer Engine", plugins, plain=1.0, bound=1.0)
