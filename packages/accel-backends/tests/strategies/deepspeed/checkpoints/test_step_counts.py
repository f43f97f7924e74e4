import torch

from accel_backends.strategies.deepspeed.checkpoints.step_counts import restore_step_counts


def test_an_optimizer_of_torch_continues_from_steps_that_deepspeed_counted():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    optimizer.state[parameter] = {"step": 4, "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    restore_step_counts(optimizer)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(optimizer.state[parameter]["step"], torch.tensor(5.0))
