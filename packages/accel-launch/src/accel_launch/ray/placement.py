"""Which actor is which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accel_launch.launchers.local import rank_variables


@dataclass(frozen=True, slots=True)
class Place:
    """Where Ray has put an actor; ``gpus`` are the ids of those that are its own."""

    node: str
    address: str
    hostname: str
    gpus: tuple[str, ...] = ()
    gpu_variable: str | None = None


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """A rank, the number of its actor, and the variables that follow from its place."""

    rank: int
    actor: int
    place: Place
    environ: dict[str, str]


def placed_ranks(places: Sequence[Place]) -> list[PlacedRank]:
    """Number the actors node by node, and those of a node by their GPUs; rank 0 is on the node of the first actor.

    All ranks of a node see all its GPUs, so that `LOCAL_RANK` names the own one, as with torchrun. Nodes may have
    unequally many.
    """
    nodes = list(dict.fromkeys(place.node for place in places))
    found: list[PlacedRank] = []
    for node_rank, node in enumerate(nodes):
        actors = [actor for actor, place in enumerate(places) if place.node == node]
        actors.sort(key=lambda actor: (_in_order(places[actor].gpus), actor))
        gpus = ",".join(gpu for actor in actors for gpu in places[actor].gpus)
        for local_rank, actor in enumerate(actors):
            place = places[actor]
            environ = rank_variables(
                rank=len(found),
                world_size=len(places),
                local_rank=local_rank,
                local_world_size=len(actors),
                machine_rank=node_rank,
                num_machines=len(nodes),
            )
            if gpus and place.gpu_variable is not None:
                environ[place.gpu_variable] = gpus
            found.append(PlacedRank(len(found), actor, place, environ))
    return found


def _in_order(gpus: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Return what sorts ``10`` after ``9``, and leaves identifiers of another kind as they are."""
    return tuple((len(gpu), gpu) for gpu in gpus)
