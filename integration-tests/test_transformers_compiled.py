"""Compiled models of transformers whose layers or sequences ranks share: the losses of the same run in eager mode."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from accel import Accelerator, ParallelismConfig
from accel.utils import FullyShardedDataParallelPlugin
from accel_state import TorchContextParallelConfig
from accel_state.runtime import reset_runtime

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = [pytest.mark.engine("long"), pytest.mark.filterwarnings("ignore")]


def make_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=40, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def losses_and_graphs(sizes, *, backend, is_checkpointed):
    """Return the losses of three batches on this rank, and how many graphs were compiled."""
    reset_runtime(keep_process_group=True)
    torch._dynamo.reset()
    counters.clear()
    cuts = TorchContextParallelConfig(cuts_batches=True, cp_comm_strategy=sizes.get("ways"))
    axes = {axis: size for axis, size in sizes.items() if axis != "ways"}
    accelerator = Accelerator(
        cpu=True,
        dynamo_backend=backend,
        parallelism_config=ParallelismConfig(
            **axes, sp_backend="torch", cp_handler=cuts if "cp_size" in axes else None
        ),
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=is_checkpointed),
    )
    model = make_llama()
    ids = torch.randint(0, 40, (6, 16), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(rows, batch_size=2)
    )
    losses = []
    for batch in loader:
        labels = batch["shift_labels"] if "shift_labels" in batch else batch["labels"]
        inputs = {name: one for name, one in batch.items() if name not in ("labels", "shift_labels")}
        loss = cross_entropy(model(**inputs).logits.flatten(0, 1), labels.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, counters["stats"]["unique_graphs"]


def every_way(sizes):
    ways = [("no", False), ("aot_eager", False), ("aot_eager", True)]
    return [losses_and_graphs(sizes, backend=one, is_checkpointed=checkpointed) for one, checkpointed in ways]


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"tp_size": 2}, id="tp"),
        pytest.param({"cp_size": 2, "ways": "allgather"}, id="cp"),
        pytest.param({"cp_size": 2, "ways": "alltoall"}, id="ring"),
        pytest.param({"sp_size": 2}, id="sp"),
    ],
)
def test_compiled_blocks_train_like_eager_ones_with_and_without_checkpointing(world, sizes):
    for (expected, _), *compiled in world(2).run(every_way, sizes):
        for losses, num_graphs in compiled:
            assert losses == pytest.approx(expected, rel=1e-5)
            assert num_graphs > 0
