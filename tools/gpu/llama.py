"""Tokens per second of Llamas with random weights: one step by plain torch, through accel and through Accelerate."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tools.gpu.measuring import LIBRARIES, Bench, NotHereError, Row, Step, graph_counts, near, ratio

WIDE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
PEAK_FLOPS = 989.4e12
"""Of an H100 or H200 in bf16."""
Optimizers = Callable[[Any, Bench], list[Any]]
Change = Callable[[Any], Any]
Make = Callable[..., Any]


@dataclass(frozen=True)
class Size:
    """A model, given by the values of `WIDE`, and its batches."""

    shape: tuple[int, int, int, int, int]
    batch: int = 4
    length: int = 4096
    num_timed: int = 8

    @classmethod
    def of(cls, bench: Bench, *shape: int, **more: int) -> Size:
        return cls((64, 128, 4, 4, 256), 2, 32, 2) if bench.is_small else cls(shape, **more)  # type: ignore[arg-type]

    def config(self, **more: Any) -> Any:
        """Return the configuration of the model."""
        from transformers import LlamaConfig

        sizes: dict[str, Any] = dict(zip(WIDE, self.shape, strict=True))
        options = {
            "use_cache": False,
            "attn_implementation": "sdpa",
            "num_key_value_heads": min(8, self.shape[3]),
        }
        return LlamaConfig(
            max_position_embeddings=self.length, tie_word_embeddings=False, **sizes, **{**options, **more}
        )

    def mfu(self, num_parameters: int, tokens_per_s: float) -> float:
        """Return the percentage of the peak; attention is counted as not causal, recomputation is not counted."""
        attention = 12 * self.shape[2] * self.shape[0] * self.length
        return round(100 * (6 * num_parameters + attention) * tokens_per_s / PEAK_FLOPS, 1)


def make_llama(bench: Bench, config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model in training mode, its weights made on the device."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with bench.device:
            return LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(before)


def adamw(model: Any, bench: Bench) -> list[Any]:
    """Return AdamW, fused on a device."""
    return [torch.optim.AdamW(model.parameters(), lr=1e-5, fused=bench.is_cuda)]


def muon_and_adamw(model: Any, bench: Bench) -> list[Any]:
    """Return Muon for the matrices of the layers, AdamW for the rest."""
    inner = [one for name, one in model.named_parameters() if "layers." in name and one.ndim == 2]
    others = [one for one in model.parameters() if not any(one is each for each in inner)]
    return [torch.optim.Muon(inner, lr=1e-3, weight_decay=0.0), torch.optim.AdamW(others, lr=1e-3)]


def step_of(
    bench: Bench, size: Size, model: Any, backward: Callable[[torch.Tensor], object], optimizers: Iterable[Any], *,
    autocast: bool = False,
) -> Step:  # fmt: skip
    """Return a training step on one batch."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(size.shape[-1], (size.batch, size.length), generator=generator).to(bench.device)

    def step() -> torch.Tensor:
        with torch.autocast(bench.device.type, torch.bfloat16, enabled=autocast):
            loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


def checkpointed(model: Any, num_layers: int) -> Any:
    """Return the model, the activations of its first layers recomputed in the backward pass."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.model.layers[num_layers:]:
        layer.gradient_checkpointing = False
    return model


def plain(
    bench: Bench, size: Size, *, make: Make = make_llama, change: Change = lambda model: model,
    optimizers: Optimizers = adamw, autocast: bool = True, compiles: bool = True,
) -> Step:  # fmt: skip
    """Return a step as plain torch has it."""
    model = change(make(bench, size.config()))
    if compiles:
        layers = model.model.layers
        for place, layer in enumerate(layers):
            layers[place] = torch.compile(layer, backend=bench.compiler, dynamic=False)
    return step_of(bench, size, model, torch.Tensor.backward, optimizers(model, bench), autocast=autocast)


def through(
    bench: Bench, size: Size, library: str, *, make: Make = make_llama, change: Change = lambda model: model,
    optimizers: Optimizers = adamw, compiles: bool = True, **settings: Any,
) -> Step:  # fmt: skip
    """Return a step through a library."""
    if compiles:
        plugin = importlib.import_module(f"{library}.utils").TorchDynamoPlugin
        settings["dynamo_plugin"] = plugin(
            backend=bench.compiler, use_regional_compilation=True, dynamic=False
        )
    accelerator = bench.accelerator(library, **settings)
    model = change(make(bench, size.config()))
    prepared, *stepping = accelerator.prepare(model, *optimizers(model, bench))
    return step_of(bench, size, prepared, accelerator.backward, stepping)


@dataclass
class Trained:
    """The result of a measured training."""

    tokens_per_s: float
    losses: list[float]
    graphs: int
    breaks: int
    peak_gb: float


def trained(bench: Bench, size: Size, make: Callable[[], Step]) -> Trained:
    """Build a step, warm it up, and time it."""
    bench.clear()
    before = graph_counts()
    step = make()
    losses = [step() for _ in range(3)]
    more, seconds = bench.clocked(lambda: [step() for _ in range(size.num_timed)])
    counts, peak = graph_counts() - before, bench.peak_gb()
    values = [loss.item() for loss in (*losses, *more)]
    return Trained(
        size.num_timed * size.batch * size.length / seconds, values, counts["graphs"], counts["breaks"], peak
    )


def compared(
    bench: Bench, size: Size, name: str, ways: Mapping[str, Callable[[], Step]], *, goal: float = 0.99,
    tolerance: float = 0.02,
) -> tuple[Row, dict[str, Trained]]:  # fmt: skip
    """Return a row, not put yet, of training in several ways, and their results; ``goal`` is relative to plain."""
    found = {library: trained(bench, size, way) for library, way in ways.items()}
    row = Row(name, "tokens/s", f"≥ {goal} of plain")
    row.figures = {library: round(one.tokens_per_s) for library, one in found.items()}
    ours, by_hand = found["accel"], found["plain"]
    row.note = f"peak {ours.peak_gb} GB, plain {by_hand.peak_gb} GB"
    if not near(ours.losses, by_hand.losses, tolerance=tolerance):
        row.wrong.append(f"losses {ours.losses[:3]}, plain {by_hand.losses[:3]}")
    if bench.has_goals and ratio(ours.tokens_per_s, by_hand.tokens_per_s) < goal:
        row.wrong.append(f"{ratio(ours.tokens_per_s, by_hand.tokens_per_s)} of plain")
    return row, found


def fsdp2(bench: Bench) -> None:
    """Put rows of FSDP 2 with activation checkpointing and compiled blocks, and `fully_shard` by hand."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("cpu:gloo,cuda:nccl" if bench.is_cuda else "gloo")

    def sharded(model: Any) -> Any:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options: dict[str, Any] = {"mesh": init_device_mesh(bench.device.type, (1,)), "mp_policy": policy}
        for layer in model.model.layers:
            forward = partial(checkpoint, layer.forward, use_reentrant=False)
            layer.forward = torch.compile(forward, backend=bench.compiler, dynamic=False)
            fully_shard(layer, **options)
        return fully_shard(model, reshard_after_forward=False, **options)

    def plugin(library: str) -> Any:
        return importlib.import_module(library).FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"], activation_checkpointing=True,
        )  # fmt: skip

    size = Size.of(bench, 2048, 8192, 18, 16, 32768)
    ways: dict[str, Callable[[], Step]] = {
        "plain": lambda: plain(bench, size, change=sharded, autocast=False, compiles=False)
    }
    for library in LIBRARIES[1:]:
        ways[library] = lambda library=library: through(  # type: ignore[misc]
            bench, size, library, mixed_precision="bf16", fsdp_plugin=plugin(library)
        )
    row, found = compared(bench, size, "FSDP 2, 1.3B Llama, checkpointing, blocks compiled", ways)
    bench.put(row)
    graphs = Row("the same: graph breaks", "breaks", "none more than plain")
    graphs.figures = {library: one.breaks for library, one in found.items()}
    graphs.note = f"graphs: {found['accel'].graphs}, plain {found['plain'].graphs}"
    if found["accel"].breaks > found["plain"].breaks:
        graphs.wrong.append(f"{found['accel'].breaks} graph breaks, plain {found['plain'].breaks}")
    bench.put(graphs)
    dist.destroy_process_group()


def llama_8b(bench: Bench) -> None:
    """Put rows of 8B parameters in bf16, with activations of all layers recomputed, and of as few as fit in 141 GB."""
    num_bytes = torch.cuda.mem_get_info()[0] if bench.has_goals else 141e9
    if num_bytes < 90e9:
        raise NotHereError("needs 90 GB of free GPU memory")
    size = Size.of(bench, 4096, 14336, 32, 32, 128256, num_timed=4)
    make = partial(make_llama, dtype=torch.bfloat16)
    for num_layers in (32, 12) if num_bytes > 130e9 else (32,):
        change = partial(checkpointed, num_layers=num_layers)
        name = f"8B Llama in bf16, {num_layers} of 32 layers checkpointed, blocks compiled"
        ways = {
            "plain": partial(plain, bench, size, make=make, change=change, autocast=False),
            "accel": partial(through, bench, size, "accel", make=make, change=change),
        }
        row, found = compared(bench, size, name, ways)
        row.note = f"MFU {size.mfu(8_030_261_248, found['accel'].tokens_per_s)}%, {row.note}"
        bench.put(row)


def muon(bench: Bench) -> None:
    """Put a row of torch's Muon for the matrices of the layers and AdamW for the rest."""
    if not hasattr(torch.optim, "Muon"):
        raise NotHereError(f"torch {torch.__version__} has no Muon")
    size = Size.of(bench, 1024, 4096, 12, 8, 8192, batch=8, length=1024)
    options: dict[str, Any] = {"optimizers": muon_and_adamw, "compiles": False}
    ways = {
        "plain": partial(plain, bench, size, **options),
        "accel": partial(through, bench, size, "accel", mixed_precision="bf16", **options),
    }
    bench.put(compared(bench, size, "Muon and AdamW, 0.2B Llama, bf16", ways, goal=0.98)[0])


def _blocks(bench: Bench) -> Size:
    """Return four blocks of a Llama-8B; the vocabulary is small, so that the blocks dominate."""
    return Size.of(bench, 4096, 14336, 4, 32, 1024)


def _is_in_block(module: torch.nn.Module, name: str) -> bool:
    return ".layers." in f".{name}"


def fp8(bench: Bench) -> None:
    """Put a row of FP8 by torchao, compiled; the bound is accel in bf16."""
    if importlib.util.find_spec("torchao") is None:
        raise NotHereError("torchao is not installed")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe: Any = (
        Float8LinearConfig.from_recipe_name("rowwise") if bench.is_cuda else Float8LinearConfig(emulate=True)
    )
    size = _blocks(bench)
    convert = partial(convert_to_float8_training, config=recipe, module_filter_fn=_is_in_block)
    ways: dict[str, Callable[[], Step]] = {"plain": partial(plain, bench, size, change=convert)}
    for library in LIBRARIES[1:]:
        handler = importlib.import_module(f"{library}.utils").AORecipeKwargs
        handlers = [handler(config=recipe, module_filter_func=_is_in_block)]
        ways[library] = partial(
            through, bench, size, library, mixed_precision="fp8", kwargs_handlers=handlers
        )
    ways["bound"] = partial(through, bench, size, "accel", mixed_precision="bf16")
    name = "fp8 by torchao, four blocks of Llama-8B"
    _put_in_8_bits(bench, *compared(bench, size, name, ways, goal=0.98, tolerance=0.05), gain=1.25)


def transformer_engine(bench: Bench) -> None:
    """Put a row of FP8 by Transformer Engine; plain and the bound are bf16."""
    if importlib.util.find_spec("transformer_engine") is None or not bench.is_cuda:
        raise NotHereError("Transformer Engine is not installed, or has no GPU")
    from accel.utils import TERecipeKwargs

    size = _blocks(bench)
    in_8_bits = partial(
        through, bench, size, "accel", mixed_precision="fp8", kwargs_handlers=[TERecipeKwargs()]
    )
    ways: dict[str, Callable[[], Step]] = {
        "plain": partial(plain, bench, size),
        "accel": in_8_bits,
        "bound": partial(through, bench, size, "accel", mixed_precision="bf16"),
    }
    name = "fp8 by Transformer Engine, four blocks of Llama-8B"
    _put_in_8_bits(bench, *compared(bench, size, name, ways, goal=1.0, tolerance=0.05), gain=1.0)


def _put_in_8_bits(bench: Bench, row: Row, found: dict[str, Trained], *, gain: float) -> None:
    reached = ratio(found["accel"].tokens_per_s, found["bound"].tokens_per_s)
    row.goal += f", ≥ {gain} of bf16"
    row.note = f"{reached} of bf16, {row.note}"
    if bench.has_goals and reached < gain:
        row.wrong.append(f"{reached} of bf16")
    bench.put(row)
