"""Energy of a training step: bits that cross links of EP communication, and FLOPs of products, each at a named price (`energy.*` in choices.toml).

Memory, networks between domains and what a GPU takes when it waits are not counted: no Row counts their bytes.
"""

from dataclasses import asdict, dataclass

from dysharp.specs.whole import WholeModel
from dysharp.steps.accounting.conventions import MEGATRON, model_flops
from dysharp.steps.cost import EpTimes
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine, number

MJ_PER_PJ = 1e-9


@dataclass(frozen=True, slots=True)
class Energy:
    """Millijoules of one trained token, forward and backward, and the prices. A row that goes through a switch crosses two links."""

    links_mj_per_token: float
    products_mj_per_token: float
    pj_per_bit: float
    pj_per_flop: float

    def to_dict(self) -> dict[str, float]:
        """Plain values for JSON."""
        return asdict(self)


def energy_of(model: WholeModel, machine: Machine, layout: Layout, sequence: int, ep: EpTimes | None) -> Energy:
    """The energy of a token. `ep`: the MoE layer's Rows, whose flits are counted; without them links count nothing."""
    dtype = model.layer.gemm_dtype if model.layer else "bf16"
    bit, flop = number("energy.link_pj_per_bit"), number(f"energy.{dtype}_pj_per_flop")
    moved = ep.link_flits * machine.cluster.flit_bytes * model.moe_layers / (layout.tokens(sequence) / layout.tp) if ep else 0.0
    return Energy(8 * moved * bit * MJ_PER_PJ, model_flops(model, sequence, MEGATRON) * flop * MJ_PER_PJ, bit, flop)
