"""A plain loop with a strategy of another package, and with those of accel-backends: all train alike.

torchrun --nproc_per_node 2 backends.py delayed_averaging
"""

import sys

import torch
from delayed_averaging import DelayedAveragingPlugin
from torch import nn

from accel_backends import Bundle, StrategyContext, full_model_state, select_precision, select_strategy
from accel_state import PartialState, current_runtime

state = PartialState(cpu=True)
runtime = current_runtime()
plugin = DelayedAveragingPlugin() if sys.argv[1] == "delayed_averaging" else None
precision = select_precision("no", device_backend=runtime.device_backend)
strategy = select_strategy(sys.argv[1], topology=runtime.topology, plugin=plugin)
strategy.setup(StrategyContext(runtime, precision, plugin=plugin))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
bundle = Bundle(models=[model], optimizers=[torch.optim.AdamW(model.parameters(), lr=0.05)])
prepared = strategy.prepare(bundle)
model, optimizer = prepared.models[0], prepared.optimizers[0]
for _ in range(20):
    batch = torch.randn(12, 4, dtype=torch.float64)
    rows = batch.chunk(state.num_processes)[state.process_index]
    loss = (model(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
    strategy.backward(loss)
    strategy.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
total = sum(value.sum().item() for value in full_model_state(strategy, model).values())
state.print(f"{strategy.name} on {state.num_processes}: {total:.10f}")
strategy.release()
state.destroy_process_group()
