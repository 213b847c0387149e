"""The model of the block `replica-choice` makes the choices of `workload.balance`, halving included."""

from random import Random

import numpy as np
import pytest

pytest.importorskip("amaranth")

from dysharp.silicon.rtl.parts import slot_bits
from dysharp.silicon.rtl.replica_choice import ChoiceParameters, _ChoiceModel
from dysharp.specs import Model
from dysharp.workload import make_routing
from dysharp.workload.balance import _fewest


@pytest.mark.parametrize("bits", [3, 16])
def test_the_block_chooses_as_the_plan_does(bits: int) -> None:
    model = Model("small", 256, 128, 16, 3, 40, 2, 2, "fp8")
    routing = make_routing("lognormal:1", model, 4, 40, placement="eplb:slots=28")
    p, width = routing.placement, slot_bits(4)
    slots = [np.flatnonzero(p.slot_expert == e)[:8].tolist() for e in range(16)]
    chosen = _fewest(routing.expert, slots, [len(one) for one in slots], [[0] * 4] * 4, p.slots_per_gpu, 1 << bits)
    block = _ChoiceModel(ChoiceParameters(4, bits, 8), Random(0))
    for token in np.arange(160).reshape(4, 40).T.ravel().tolist():
        for expert, slot in zip(routing.expert[token].tolist(), chosen[token].tolist(), strict=True):
            gpus = [place // p.slots_per_gpu for place in slots[expert]]
            pins = {"gpus": sum(gpu << width * i for i, gpu in enumerate(gpus)), "n": len(gpus), "first": (token + expert) % len(gpus)}
            block.take(pins)
            assert block.out["out_gpu"] == slot // p.slots_per_gpu
    assert (block.seen["halved"] > 0) == (bits == 3)
