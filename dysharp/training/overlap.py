"""Pairs of a forward and a backward block from the times of their phases, on one computing and one communication stream, in DualPipe's order.

Names are autograd's: combine of B runs a dispatch kernel, dispatch of B a combine kernel.
"""

from collections.abc import Sequence
from dataclasses import fields

from dysharp.base import Tally, frozen
from dysharp.training.cost import PassCost
from dysharp.training.graph import Graph, Node, replay


@frozen
class Phases:
    """Times of the phases of one pair, in any one unit, in the order of their launches."""

    combine_b: float
    attn_f: float
    mlp_b: float
    dispatch_f: float
    mlp_w: float
    dispatch_b: float
    mlp_f: float
    combine_f: float
    attn_b: float
    attn_w: float


NEEDS = {
    "mlp_b": ("combine_b",), "dispatch_f": ("attn_f",), "dispatch_b": ("mlp_b",), "mlp_f": ("dispatch_f",), "combine_f": ("mlp_f",),
    "attn_b": ("dispatch_b",),
}  # fmt: skip
"""Phase -> phases of its pair that it waits for, beside those before it on its stream."""
LATER = {"combine_b": "attn_b", "attn_f": "combine_f"}
"""Phase -> phase of the pair before that it waits for: the gradient, and the output, of the layer before."""
WIRE = ("combine_b", "dispatch_f", "dispatch_b", "combine_f")


def pairs_time(pairs: Sequence[Phases]) -> float:
    """The time of pairs one behind the other."""
    graph = Graph()
    before: Tally = {}
    for k, pair in enumerate(pairs):
        made: Tally = {}
        for name in (f.name for f in fields(Phases)):
            after = [made[need] for need in NEEDS.get(name, ())]
            after += [before[LATER[name]]] if k and name in LATER else []
            stream = "communication" if name in WIRE else "compute"
            made[name] = graph.add(stream, Node(f"{name} {k}", stream, 0), getattr(pair, name), after)
        before = made
    return replay(graph).makespan


def phases_of(early: PassCost, behind: PassCost, wires: tuple[float, float, float, float], part: float) -> Phases:
    """Phases of a pair of equal blocks. `early`: attention, norms and router; `behind`: the rest without its transfers; both with all SMs of a GPU.

    `wires`: dispatch (F), combine (F), the dispatch kernel of B and its combine kernel. `part`: of the SMs, which computing has.
    """
    dispatch, combine, back, back_combine = wires
    return Phases(
        back, early.forward / part, behind.backward / part, dispatch, behind.weights / part, back_combine, behind.forward / part, combine,
        early.backward / part, early.weights / part,
    )  # fmt: skip
