import torch

from accel_backends import DummyOptim, DummyScheduler


def test_stand_ins_keep_what_fills_the_config():
    parameters = list(torch.nn.Linear(2, 2).parameters())
    optimizer = DummyOptim(parameters, lr=0.1, betas=(0.9, 0.8))
    assert (optimizer.params, optimizer.lr, optimizer.weight_decay) == (parameters, 0.1, 0)
    assert optimizer.kwargs == {"betas": (0.9, 0.8)}
    scheduler = DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=2)
    assert (scheduler.optimizer, scheduler.total_num_steps, scheduler.warmup_num_steps) == (optimizer, 10, 2)
    assert scheduler.lr_scheduler_callable is None
