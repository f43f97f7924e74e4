"""Training steps by plain torch, through accel and through Accelerate: of a tiny model and of Llamas."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tools.gpu.measuring import LIBRARIES, Bench, NotHereError, ratio

Step = Callable[[], torch.Tensor]
WIDE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "accumulation over 4": {"accumulate": 4},
    "clipping, scheduler": {"clips": True},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16, fused AdamW": {"precision": "fp16", "fused": True},
    "accumulation, `num_items` on the device": {"accumulate": 4, "items": True},
}


@dataclass
class Loop:
    """A loop over one batch.

    Args:
        bench: Where it runs.
        make: Returns a model and what its loss is.
        optimizers: Returns those of a model.
        precision: Of the computation.
        accumulate: Micro-batches of a step.
        clips: Clip gradients, and step a scheduler.
        items: Weigh micro-batches by a number on the device.
        compiler: What compiles the blocks.
    """

    bench: Bench
    make: Callable[[], tuple[Any, Callable[[Any], torch.Tensor]]]
    optimizers: Callable[[Iterable[Any]], Any]
    precision: str = "no"
    accumulate: int = 1
    clips: bool = False
    items: bool = False
    compiler: dict[str, Any] = field(default_factory=dict)

    def step(self, library: str, **settings: Any) -> Step:
        """Return a step by plain torch or through a library."""
        torch.manual_seed(0)
        model, loss_of = self.make()
        optimizers = self.optimizers(model)
        scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizers[0], lambda step: 1.0)
        num_items = torch.tensor(32.0, device=self.bench.device) if self.items else None
        if library == "plain":
            return self._by_hand(model, loss_of, optimizers, scheduler, num_items)
        settings = {
            "mixed_precision": self.precision,
            "gradient_accumulation_steps": self.accumulate,
        } | settings
        if self.compiler:
            plugin = importlib.import_module(f"{library}.utils").TorchDynamoPlugin
            settings["dynamo_plugin"] = plugin(use_regional_compilation=True, **self.compiler)
        accelerator = self.bench.accelerator(library, **settings)
        prepared, *stepping = accelerator.prepare(model, *optimizers, *([scheduler] if self.clips else []))
        more = {"num_items": num_items} if self.items else {}

        def step() -> torch.Tensor:
            with nullcontext() if self.accumulate == 1 else accelerator.accumulate(prepared):
                loss: torch.Tensor = loss_of(prepared)
                accelerator.backward(loss, **more)
                if self.clips:
                    accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                for each in stepping:
                    each.step()
                for each in stepping[: len(optimizers)]:
                    each.zero_grad()
            return loss.detach()

        return step

    def _by_hand(self, model: Any, loss_of: Any, optimizers: Any, scheduler: Any, num_items: Any) -> Step:
        for layer in model.model.layers if self.compiler else ():
            layer.compile(**self.compiler)
        kind, dtype = (
            self.bench.device.type,
            {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision),
        )
        scaler = torch.amp.GradScaler(kind) if self.precision == "fp16" else None
        share = num_items / (num_items * self.accumulate) if self.items else 1 / self.accumulate
        calls = 0

        def step() -> torch.Tensor:
            nonlocal calls
            with nullcontext() if dtype is None else torch.autocast(kind, dtype):
                loss: torch.Tensor = loss_of(model)
            loss = loss if self.accumulate == 1 else loss * share
            torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
            calls += 1
            if calls % self.accumulate:
                return loss.detach()
            if self.clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
            if self.clips:
                scheduler.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            return loss.detach()

        return step


def repeated(step: Step, count: int) -> list[torch.Tensor]:
    """Return the losses of so many steps."""
    return [step() for _ in range(count)]


def host_waits(step: Step, *, count: int = 8) -> tuple[float, str]:
    """Return how often a step makes the host wait for the GPU, and where."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        repeated(step, count)
    torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    places = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)
    return len(waits) / count, ", ".join(place for place, _ in places.most_common(3))


def adamw(model: Any, *, fused: bool) -> list[Any]:
    """Return AdamW for a model."""
    return [torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)]


def step(bench: Bench) -> None:
    """Put a row for each kind of loop over a tiny model; Accelerate has no `num_items`."""
    inputs, labels = torch.randn(32, 64, device=bench.device), torch.randint(10, (32,), device=bench.device)
    num_steps, num_rounds = (100, 7) if bench.is_cuda else (5, 3)

    def make() -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(bench.device)
        return model, lambda model: cross_entropy(model(inputs), labels)

    for kind, options in KINDS.items():
        optimizers = partial(adamw, fused="fused" in options)
        loop = Loop(bench, make, optimizers, **{key: options[key] for key in options.keys() - {"fused"}})
        steps = {library: loop.step(library) for library in LIBRARIES[: 2 if loop.items else 3]}
        seconds: dict[str, list[float]] = defaultdict(list)
        order = list(steps)
        for number in range(num_rounds + 1):  # each round another one begins; the first is not counted
            order.append(order.pop(0))
            for name in order:
                _, took = bench.clocked(partial(repeated, steps[name], num_steps))
                seconds[name] += [took / num_steps] if number else []
        figures = {name: round(1e6 * statistics.median(each), 1) for name, each in seconds.items()}
        plain, ours = (float(steps[name]()) for name in LIBRARIES[:2])
        is_near = math.isclose(ours, plain * loop.accumulate, rel_tol=0.02, abs_tol=0.002)
        wrong, note = "" if is_near else f"loss {ours}, plain {plain}", ""
        if bench.is_cuda:
            (waits, places), (plain_waits, _) = host_waits(steps["accel"]), host_waits(steps["plain"])
            note = f"host waits a step: {waits:g}, plain {plain_waits:g}"
            wrong += f"{note}, at {places}" if waits > plain_waits else ""
        row, goal = f"a step of a tiny model: {kind}", "≤ 1.15 of plain, no further host wait"
        bench.put(row, "µs", goal, figures, note=note, wrong=wrong, plain=1.15)


@dataclass
class Llama:
    """A Llama with random weights, and a batch.

    Args:
        bench: Where it runs.
        sizes: The values of `WIDE`.
        batch, length: The size of the batch.
        num_timed: How many steps are timed.
        dtype: Of the weights.
        compiles: Compile the blocks.
        precision: Of the computation.
    """

    bench: Bench
    sizes: tuple[int, ...]
    batch: int = 4
    length: int = 4096
    num_timed: int = 8
    dtype: torch.dtype = torch.float32
    compiles: bool = True
    precision: str = "bf16"

    def __post_init__(self) -> None:
        if self.bench.is_small:
            self.sizes, self.batch, self.length, self.num_timed = (64, 128, 4, 4, 256), 2, 32, 2
        backend = "aot_eager" if self.bench.is_small else "inductor"
        self.compiler: dict[str, Any] = {"backend": backend, "dynamic": False}
        tokens = torch.randint(
            self.sizes[-1], (self.batch, self.length), generator=torch.Generator().manual_seed(1)
        )
        self.tokens = tokens.to(self.bench.device)

    def model(self, place: Any = None, **options: Any) -> Any:
        """Return a model, its weights made on the device or in the context ``place``."""
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config: Any = LlamaConfig
        options = {"use_cache": False, "attn_implementation": "sdpa", "tie_word_embeddings": False} | options
        options |= {**dict(zip(WIDE, self.sizes, strict=True)), "num_key_value_heads": min(8, self.sizes[3])}
        torch.set_default_dtype(self.dtype)
        with place or self.bench.device:
            model: Any = LlamaForCausalLM(config(max_position_embeddings=self.length, **options))
        torch.set_default_dtype(torch.float32)
        return model.train()

    def loss(self, model: Any) -> torch.Tensor:
        """Return the loss of the batch."""
        loss: torch.Tensor = model(input_ids=self.tokens, labels=self.tokens).loss
        return loss

    def adamw(self, model: Any) -> list[Any]:
        """Return AdamW, fused on a GPU."""
        return [torch.optim.AdamW(model.parameters(), lr=1e-5, fused=self.bench.is_cuda)]

    def way(
        self, library: str, change: Any = lambda model: model, optimizers: Any = None, **settings: Any
    ) -> Any:
        """Return what makes a step; `change` is done to a new model."""
        loop = Loop(
            self.bench, lambda: (change(self.model()), self.loss), optimizers or self.adamw, self.precision,
            compiler=self.compiler if self.compiles else {},
        )  # fmt: skip
        return partial(loop.step, library, **settings)

    def put(
        self,
        row: str,
        ways: dict[str, Callable[[], Step]],
        *,
        tolerance: float = 0.02,
        flops: float = 0.0,
        **least: float,
    ) -> dict[str, Any]:
        """Train in several ways, put the row, and return how often each one's graph broke, and its graphs."""
        figures, losses, graphs, peaks = {}, {}, {}, {}
        for name, make in ways.items():
            self.bench.clear()
            counters.clear()
            step = make()
            first = repeated(step, 3)
            more, seconds = self.bench.clocked(partial(repeated, step, self.num_timed))
            figures[name] = round(self.num_timed * self.tokens.numel() / seconds)
            losses[name] = [loss.item() for loss in (*first, *more)]
            graphs[name] = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
            peaks[name] = self.bench.peak()
            del step
        pairs = zip(losses["accel"], losses["plain"], strict=True)
        is_near = all(math.isclose(*pair, rel_tol=tolerance, abs_tol=0.1 * tolerance) for pair in pairs)
        wrong = "" if is_near else f"losses {losses['accel'][:3]}, plain {losses['plain'][:3]}"
        note = f"peak {peaks['accel']}, plain {peaks['plain']}"
        note += f", {ratio(figures['accel'], figures['bound'])} of bf16" if "bound" in figures else ""
        note += (
            f", MFU {100 * flops * figures['accel'] / 989.4e12:.1f}%" if flops else ""
        )  # of an H100 or H200
        goal = ", ".join(f"≥ {each} of {'bf16' if name == 'bound' else name}" for name, each in least.items())
        self.bench.put(row, "tokens/s", goal, figures, note=note, wrong=wrong, **least)
        return graphs


def fsdp2(bench: Bench) -> None:
    """Put rows of FSDP 2 with activation checkpointing and compiled blocks, and `fully_shard` by hand."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("cpu:gloo,cuda:nccl" if bench.is_cuda else "gloo")
    llama = Llama(bench, (2048, 8192, 18, 16, 32768))
    by_hand = Llama(bench, (2048, 8192, 18, 16, 32768), precision="no", compiles=False)

    def sharded(model: Any) -> Any:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh(bench.device.type, (1,))
        for layer in model.model.layers:
            forward = partial(checkpoint, layer.forward, use_reentrant=False)
            layer.forward = torch.compile(forward, **llama.compiler)
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    def through(library: str) -> Step:
        plugin = importlib.import_module(library).FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", activation_checkpointing=True,
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        )  # fmt: skip
        step: Step = llama.way(library, fsdp_plugin=plugin)()
        return step

    ways = {name: partial(through, name) for name in LIBRARIES[1:]}
    row = "FSDP 2, 1.3B Llama, checkpointing, blocks compiled"
    found = llama.put(row, {"plain": by_hand.way("plain", sharded), **ways}, plain=0.99)
    breaks = {library: each[0] for library, each in found.items()}
    note = f"graphs: {found['accel'][1]}, plain {found['plain'][1]}"
    wrong = f"{breaks['accel']} graph breaks" if breaks["accel"] > breaks["plain"] else ""
    bench.put("the same: graph breaks", "breaks", "none more than plain", breaks, note=note, wrong=wrong)
    dist.destroy_process_group()


def llama_8b(bench: Bench) -> None:
    """Put rows of 8B parameters in bf16, with activations of all layers recomputed, and of as few as fit in 141 GB."""
    num_bytes = torch.cuda.mem_get_info()[0] if bench.has_goals else 141e9
    if num_bytes < 90e9:
        raise NotHereError("needs 90 GB of free GPU memory")

    def change(model: Any, num_layers: int) -> Any:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in model.model.layers[num_layers:]:
            layer.gradient_checkpointing = False
        return model

    llama = Llama(bench, (4096, 14336, 32, 32, 128256), num_timed=4, dtype=torch.bfloat16, precision="no")
    flops = 6 * 8_030_261_248 + 12 * 32 * 4096 * 4096  # attention counts whole, recomputation does not count
    for num_layers in (32, 12) if num_bytes > 130e9 else (32,):
        changed = partial(change, num_layers=num_layers)
        row = f"8B Llama in bf16, {num_layers} of 32 layers checkpointed, blocks compiled"
        ways = {library: llama.way(library, changed) for library in LIBRARIES[:2]}
        llama.put(row, ways, flops=flops, plain=0.99)


def _small(bench: Bench) -> Llama:
    return Llama(bench, (1024, 4096, 12, 8, 8192), batch=8, length=1024, compiles=False)


def muon(bench: Bench) -> None:
    """Put a row of torch's Muon for the matrices of the layers and AdamW for the rest."""
    if not hasattr(torch.optim, "Muon"):
        raise NotHereError(f"torch {torch.__version__} has no Muon")

    def optimizers(model: Any) -> list[Any]:
        named = dict(model.named_parameters())
        inner = {name: one for name, one in named.items() if "layers." in name and one.ndim == 2}
        others = [one for name, one in named.items() if name not in inner]
        return [torch.optim.Muon(inner.values(), lr=1e-3, weight_decay=0.0), torch.optim.AdamW(others)]

    ways = {library: _small(bench).way(library, optimizers=optimizers) for library in LIBRARIES[:2]}
    _small(bench).put("Muon and AdamW, 0.2B Llama, bf16", ways, plain=0.98)


def deepspeed(bench: Bench) -> None:
    """Put a row of DeepSpeed's ZeRO 2 in fp16 with its own AdamW; plain is bf16."""
    _require("deepspeed", bench.is_cuda)
    from deepspeed.ops.adam import FusedAdam

    from accel.utils import DeepSpeedPlugin

    ours = _small(bench).way(
        "accel", optimizers=lambda model: [FusedAdam(model.parameters(), lr=1e-5, weight_decay=1e-2)],
        mixed_precision="fp16", deepspeed_plugin=DeepSpeedPlugin(zero_stage=2),
    )  # fmt: skip
    ways = {"plain": _small(bench).way("plain"), "accel": ours}
    _small(bench).put("DeepSpeed ZeRO 2, its AdamW, 0.2B Llama, fp16", ways, tolerance=0.05, plain=0.9)


def _require(module: str, is_usable: bool = True) -> None:
    if importlib.util.find_spec(module) is None or not is_usable:
        raise NotHereError(f"{module} is not installed, or has no GPU")


def _blocks(bench: Bench) -> Llama:
    """Return four blocks of a Llama-8B; the vocabulary is small, so that they are what is measured."""
    return Llama(bench, (4096, 14336, 4, 32, 1024))


def fp8(bench: Bench) -> None:
    """Put a row of 8 bits by torchao; the bound is accel in bf16."""
    _require("torchao")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    blocks, recipe = _blocks(bench), Float8LinearConfig(emulate=True)
    if bench.is_cuda:
        recipe = Float8LinearConfig.from_recipe_name("rowwise")

    def is_in_block(module: nn.Module, name: str) -> bool:
        return ".layers." in f".{name}"

    def through(library: str) -> Step:
        handler = importlib.import_module(f"{library}.utils").AORecipeKwargs
        handlers = [handler(config=recipe, module_filter_func=is_in_block)]
        step: Step = blocks.way(library, mixed_precision="fp8", kwargs_handlers=handlers)()
        return step

    ways = {name: partial(through, name) for name in LIBRARIES[1:]} | {"bound": blocks.way("accel")}
    change = partial(convert_to_float8_training, config=recipe, module_filter_fn=is_in_block)
    ways = {"plain": blocks.way("plain", change), **ways}
    blocks.put("fp8 by torchao, four blocks of Llama-8B", ways, tolerance=0.05, plain=0.98, bound=1.25)


def transformer_engine(bench: Bench) -> None:
    """Put a row of 8 bits by Transformer Engine; plain and the bound are bf16."""
    _require("transformer_engine", bench.is_cuda)
    from accel.utils import TERecipeKwargs

    blocks = _blocks(bench)
    ways = {library: blocks.way(library) for library in LIBRARIES[:2]}
    ways = {**ways, "bound": ways["accel"]}
    ways["accel"] = blocks.way("accel", mixed_precision="fp8", kwargs_handlers=[TERecipeKwargs()])
    row = "fp8 by Transformer Engine, four blocks of Llama-8B"
    blocks.put(row, ways, tolerance=0.05, plain=1.0, bound=1.0)
