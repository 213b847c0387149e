"""UCCL-EP, normal kernels: DeepEP V1's kernels; between nodes processors of the hosts write to the NICs.

Inside an NVLink domain the kernels do what DeepEP's do. Its low-latency kernels are DeepEP's there, too: `deepep-ll`.
"""

from dataclasses import replace

from dysharp.base import frozen
from dysharp.specs import choice_int
from dysharp.systems import Shown, deepep, kernels
from dysharp.systems.building import Internode


@frozen
class Options(deepep.Options):
    """Options of UCCL-EP's normal kernels.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `n_sm` | SMs of the communication kernels; real form only |
    | `dispatch` | format of rows: "rows" (the model's) or "fp8" (a byte per element and an FP32 scale per 128) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    n_sm: int = choice_int("uccl_ep.n_sm")


FACTS = replace(
    deepep.FACTS,
    source="https://github.com/uccl-project/uccl (ep, normal)",
    options=Options,
    costs=replace(deepep.FACTS.costs, drops=f"{deepep.FACTS.costs.drops}; the time of the proxies on the host (no form has it)"),
    reach=replace(deepep.FACTS.reach, assumes="proxies of the hosts that cost no time"),
    shown=Shown("#1F78B4"),
)


@kernels("uccl-ep", FACTS, between=Internode)
class _Uccl(deepep.Channels):
    """The paper form with the software costs of DeepEP's kernels."""
