"""Microseconds of the pieces of a pipeline for one micro-batch on one GPU: a dense layer, a MoE layer, embedding, MTP layer, head.

The only file here that asks `steps` for times: with another cost of a layer, this file changes.
"""

from dataclasses import dataclass
from functools import lru_cache

from dysharp.planning.experts import ep_times
from dysharp.specs.whole import WholeModel
from dysharp.steps.block import Block
from dysharp.steps.cost import Cost
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine
from dysharp.steps.practice import Practice

EP_SMS = 20
"""SMs that EP communication holds on a packaged GPU (DeepEP, normal kernels). A cluster without one is taken to run it on other engines."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Cost of each piece by letter of a layout string, "d" and "t": a dense and a MoE layer. Recomputation is in `backward`."""

    costs: dict[str, Cost]
    slow: float
    """Factor of computing beside communication."""
    pair: bool

    def one(self, letter: str) -> tuple[float, float, float, float]:
        """(forward, backward, weights, steady) of a piece. `steady`: its forward and backward pass where two micro-batches overlap."""
        c = self.costs[letter]
        alone = c.forward + c.backward + c.weights
        if not self.pair or not c.forward_wire:
            return c.forward, c.backward, c.weights, alone
        computed = self.slow * (alone - c.forward_exposed - c.backward_exposed)
        return c.forward, c.backward, c.weights, min(alone, max(computed, c.forward_wire + c.backward_wire))


@lru_cache(maxsize=1 << 14)
def pieces_of(
    model: WholeModel, machine: Machine, layout: Layout, sequence: int, system: str, overlap: str, recompute: tuple[str, ...], imbalance: float
) -> Pieces:
    """The pieces of `model` under the degrees of `layout`. `layout.dp` decides nothing here."""
    block = Block(model, machine, layout, sequence, Practice(recompute=recompute))
    ep = ep_times(machine, layout, model, sequence, system, imbalance) if model.layer else None
    costs = {letter: block.layer(layer, ep) for letter, layer in (("d", 0), ("t", model.n_layers - 1)) if model.is_moe(layer) == (letter == "t")}
    costs["E"] = block.ends(True, 0, False, ep)
    costs["L"] = block.ends(False, 0, True, ep)
    if model.mtp:
        costs["m"] = block.ends(False, 1, False, ep)
    slow = machine.cluster.n_sms / (machine.cluster.n_sms - EP_SMS) if machine.cluster.gpu else 1.0
    return Pieces(costs, slow, overlap == "pair")
