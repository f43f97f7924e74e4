"""Balance a pole: each process plays separate games, and the gradients of all are averaged (REINFORCE with a critic).

    python docs/examples/reinforcement_learning.py
    accel launch --cpu --num_processes 2 docs/examples/reinforcement_learning.py

There is no data set and no loader: `prepare` takes the model and the optimizer, and gradients are averaged as usual.
Games differ in length, so each rank passes the number of moves that its loss is a mean of as `num_items`.
"""

import argparse
import math

import torch
from torch import nn

from accel import Accelerator
from accel.utils import gather, set_seed

MOST_MOVES = 200


class CartPole:
    """A pole on a cart, for many games at once; a move pushes the cart to the left (0) or to the right (1).

    The physics follow Barto, Sutton and Anderson, 1983. States are ``(games, 4)``: place and speed of the cart,
    angle and speed of the pole.
    """

    def __init__(self, num_games: int, device: torch.device) -> None:
        self.state = (torch.rand(num_games, 4, device=device) - 0.5) * 0.1

    def step(self, moves: torch.Tensor) -> torch.Tensor:
        """Return which games are over after ``(games,)`` moves."""
        x, speed, angle, turn = self.state.unbind(1)
        force = moves * 20.0 - 10.0
        push = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        pull = push - 0.05 * bend * angle.cos() / 1.1
        self.state = torch.stack(
            [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * bend], 1
        )
        return (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 12 * math.pi / 180)


class Player(nn.Module):
    """Maps states to the scores of both moves, and to an estimate of the number of remaining moves."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.moves = nn.Linear(width, 2)
        self.value = nn.Linear(width, 1)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.body(states)
        return self.moves(seen), self.value(seen).squeeze(-1)


@torch.no_grad()
def play(model: nn.Module, num_games: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Play games to their end; return ``(moves, games, 4)`` states, moves, and which of them were played."""
    games = CartPole(num_games, device)
    runs = torch.ones(num_games, dtype=torch.bool, device=device)
    states, moves, played = [], [], []
    while len(moves) < MOST_MOVES and runs.any():
        scores, _ = model(games.state)
        move = torch.distributions.Categorical(logits=scores).sample()
        states.append(games.state)
        moves.append(move)
        played.append(runs)
        runs = runs & ~games.step(move)
    return torch.stack(states), torch.stack(moves), torch.stack(played)


def returns_of(played: torch.Tensor, discount: float = 0.99) -> torch.Tensor:
    """Return, for each move, the discounted number of moves from it to the end of its game."""
    returns = torch.zeros_like(played, dtype=torch.float32)
    ahead = torch.zeros(played.shape[1], device=played.device)
    for step in reversed(range(len(played))):
        ahead = played[step] * (1 + discount * ahead)
        returns[step] = ahead
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn to balance a pole.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--num_games", type=int, default=16, help="of all processes together, in each round")
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0, device_specific=True)  # every rank plays other games
    model = Player()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    num_games = max(1, args.num_games // accelerator.num_processes)
    for number in range(1, args.rounds + 1):
        states, moves, played = play(accelerator.unwrap_model(model), num_games, accelerator.device)
        returns = returns_of(played)[played]
        scores, values = model(states[played])
        advantages = (returns - values).detach()
        advantages = advantages / (advantages.std() + 1e-6)
        chosen = torch.distributions.Categorical(logits=scores)
        loss = (
            -(chosen.log_prob(moves[played]) * advantages).mean()
            + 0.01 * nn.functional.smooth_l1_loss(values, returns)
            - 0.01 * chosen.entropy().mean()
        )
        accelerator.backward(loss, num_items=len(returns))  # accel: moves of all ranks count the same
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number % 5 == 0 or number == 1:
            lengths = gather(played.sum(0).float())
            accelerator.print(f"round {number}: {lengths.mean().item():.0f} moves, of at most {MOST_MOVES}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
