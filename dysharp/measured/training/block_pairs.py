"""Family "block": DeepSeek's four measured pairs of a forward and a backward block, from their measured phases and from modelled phases."""

from dataclasses import dataclass, fields

from dysharp.specs import load_cluster, load_whole
from dysharp.steps.block import Block
from dysharp.steps.cost import Cost
from dysharp.steps.dispatchers import exchange
from dysharp.steps.layout import layout_of
from dysharp.steps.machine import Machine
from dysharp.steps.overlap import WIRE, Phases, pairs_time, phases_of
from dysharp.steps.practice import SMS, Practice

FAMILY = "block"
BAR = 10.0
"""Percent: bar of the four pairs from modelled phases."""
MEASURED_MS = 129.0
SPANS = (
    Phases(4.42, 4.84, 5.75, 6.09, 5.33, 7.33, 4.29, 7.33, 9.22, 2.38),
    Phases(5.22, 4.39, 5.46, 5.74, 5.05, 7.91, 4.42, 8.26, 9.56, 2.39),
    Phases(6.21, 4.57, 5.47, 7.13, 5.26, 7.52, 5.21, 9.55, 9.64, 2.40),
    Phases(7.28, 4.60, 4.77, 7.99, 4.64, 7.47, 4.64, 9.66, 9.74, 2.41),
)
"""Milliseconds (deepseek-ai/profile-data@4496024, train.json: H800, EP64 over 8 nodes, 4096 tokens, 4 local experts, balanced). A transfer's span
holds its wait for peers."""
LAYOUT, TOKENS = "ep=64,dp=64,mbs=1,m=4", 4096
REPLAYED = ("layernorm", "mla_up_proj", "moe_act")
"""Modules that the trace computes again (names of its kernels)."""
FP8_ROW = 0.5 + 2 / 128
"""A row of FP8 with its scales over one of BF16."""


@dataclass(frozen=True, slots=True)
class PairCase:
    """A time in milliseconds: of the four pairs, or the mean of a phase. Only the pairs from modelled phases are judged."""

    id: str
    measured: float
    predicted: float | None
    note: str = ""
    model: str = "deepseek-v3"

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1, in percent."""
        return None if self.predicted is None else 100 * (self.predicted / self.measured - 1)

    @property
    def judged(self) -> bool:
        """Whether its error counts."""
        return not self.note


def modelled() -> Phases:
    """Phases of one pair in milliseconds, by closed forms on the SMs that DeepEP leaves."""
    model, machine = load_whole("deepseek-v3"), Machine(load_cluster("hw-dgx-h800-x8"))
    practice = Practice(dtype="fp8", dispatcher="deepep", recompute=REPLAYED)
    block = Block(model, machine, layout_of(LAYOUT), TOKENS, practice)
    assert model.layer is not None
    before, behind = block.pieces(model.n_layers - 1)
    behind |= {name: one for name, one in block.experts(None).items() if name not in ("counts", "exchange")}
    pieces = block.with_replays({**before, **behind})
    early = sum((pieces.pop(name) for name in (*before, "router")), Cost())
    sent = exchange(machine, block.layout, model.layer, TOKENS, practice)
    wires = 2 * (sent.wait + FP8_ROW * sent.dispatch, sent.wait + sent.combine)
    done = phases_of(early, sum(pieces.values(), Cost()), wires, 1 - SMS["deepep"] / machine.cluster.n_sms)
    return Phases(*(getattr(done, f.name) / 1e3 for f in fields(Phases)))


def pair_cases() -> list[PairCase]:
    """The four pairs both ways, then every phase."""
    phases = modelled()
    told = [
        PairCase("four pairs", MEASURED_MS, pairs_time([phases] * len(SPANS))),
        PairCase("four pairs, measured phases", MEASURED_MS, pairs_time(SPANS), "from measured times of phases"),
    ]
    for name in (f.name for f in fields(Phases)):
        mean = sum(getattr(one, name) for one in SPANS) / len(SPANS)
        note = "a phase; its span holds waits for peers" if name in WIRE else "a phase"
        told.append(PairCase(name, mean, getattr(phases, name), note))
    return told
