"""Calls of expert-parallel libraries by a host: Dispatch, Combine, and both in one window, in the regime that a row names.

| regime | time of a call |
|---|---|
| drained | an idle GPU waits for the host: the larger of all host steps, and of the steps up to the first kernel plus the device |
| chained | the host runs ahead: the larger of all host steps, and of the device |
| graph | the device |
| kernel | the device from the start of the first kernel |

The device's time is the time of the system's Program. Kernels of few SMs take `lib.few_sms` times as long: with random routing on machines of today
they do not fill a link as the kernels of `fitted.toml` do (two GPUs have one way for all rows). A host step is a launch, an event, or work of a
library between two of them; `lib.host_*_us` is its time. A Combine alone begins behind an untimed Dispatch (InferenceX
experimental/CollectiveX/bench/ep_measurement.py, time_us): the host is ahead of it, and its time has what DeepEP's calls have between two events
around a kernel, `deepep.call_us`. Between nodes UCCL-EP's messages go by proxies, and each takes a host step on both sides.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dysharp.base import frozen_keywords
from dysharp.costs import launch_us
from dysharp.measured.ep_kernels import EpCase, Options, ep_fields, marks_us, uniform
from dysharp.measured.families import CLUSTERS, Constants, Measurement, Unsupported, check_cluster, dtype_of, family, label, number
from dysharp.measured.internode import NODE_GPUS, check_nodes, machine
from dysharp.measured.predictions import HashableConstants
from dysharp.specs import Cluster, load_cluster, load_gpu
from dysharp.systems.nccl_ep import RELEASED

KINDS = {"ep_dispatch": "dispatch", "ep_combine": "combine", "ep_roundtrip": "roundtrip"}
REGIMES = ("drained", "chained", "graph")
KERNEL = "kernel"
"""Regime of rows alone: durations that kernels take of themselves."""
FRESH = "fresh"
"""Another word for "drained"."""
DRAINED = "cx1"
"""Start of the key `timing` of CollectiveX's rows."""
RACKS = {"gb200": "hw-gb200-nvl72", "gb300": "hw-gb300-nvl72", "vr200": "hw-vr200-nvl72"}
"""GPUs on one NVLink domain over trays."""
GRACE = tuple(RACKS)
"""GPUs whose host is a Grace processor, or the Vera processor that follows it; the others have x86 hosts (datasheets)."""
CAPACITIES = {"decode": 512, "prefill": 8192}
"""Tokens of a GPU for which CollectiveX sizes the buffers of a series."""
CAST_STEPS = 12
"""Host steps of the cast to FP8 before a normal call, in eager PyTorch."""


class Library(NamedTuple):
    """One kind of call.

    system  whose Program has the device's time
    first   host steps of a round trip up to the first kernel that other GPUs wait for
    steps   host steps of Dispatch, and of a round trip
    few     its kernels run on few SMs
    ends    tokens per GPU of the two runs of the line, on one domain and on several
    fp8     it sends FP8 rows, too
    """

    system: str
    first: int
    steps: tuple[int, int]
    few: bool = True
    ends: tuple[tuple[int, int], tuple[int, int]] = ((256, 512), (128, 256))
    fp8: bool = True


LOW_LATENCY = Library("deepep-ll", 4, (4, 8), False, ((128, 256), (128, 256)))
LIBRARIES: Mapping[tuple[str, str], Library] = {
    ("deepep-v2", "LL"): LOW_LATENCY,
    ("uccl-ep", "LL"): LOW_LATENCY._replace(first=8),
    ("deepep-v2", "normal"): Library("deepep-v2", 4, (12, 18), ends=((256, 512), (512, 1024))),
    ("uccl-ep", "normal"): Library("uccl-ep", 16, (16, 20)),
    ("nccl-ep", "normal"): Library("nccl-ep", 16, (16, 20), True, ((1024, 2048), (2048, 3072)), False),
    ("flashinfer-ep", "normal"): Library("flashinfer", 3, (16, 19), False),
    ("mori", "normal"): Library("mori", 4, (12, 18), False),
}
"""(library, mode) of a row -> its call.

Steps are counted in the sources, in order of their calls: a launch, an event, a wait of a stream, a tensor that Python makes, a wait for counts.

| library | steps |
|---|---|
| DeepEP V2 (csrc/elastic/buffer.hpp) | 17 of a round trip and the wait for counts |
| UCCL-EP, low latency (ep/src/uccl_ep.cc) | event, wait, four tensors, pointers, launch |
| FlashInfer (comm/trtllm_moe_alltoall.py) | Dispatch: cast, two kernels, four tensors per payload (three), marks; Combine: output, two kernels |

Three numbers were chosen after the rows were seen and count as fitted: NCCL EP's 16, DeepEP V2's 12 for Dispatch (its source gives 9 and the wait),
and that steps behind a low-latency kernel cost nothing. MoRI's host was not counted: it has DeepEP V2's steps.
"""
PROXIED = (6, 4)
"""Messages by proxies in UCCL-EP's Dispatch and Combine that wait for each other (uccl ep/src/internode.cu).

Dispatch: two quiets, three barriers, rows. Combine: a quiet, two barriers, rows.
"""
PROXY_STEPS = 2
"""The sender's proxy takes a command and posts it, the receiver's takes a completion and sets a flag (uccl ep/src/proxy.cpp)."""
GUEST_NICS = 1
"""Guests do not see which NIC is near a GPU (NCCL, environment variables, NCCL_TOPO_FILE). DeepEP V2 took `GUEST_NICS` for all GPUs of a node there,
in both directions and formats (chosen after the rows were seen)."""
SHARED = partial(machine, part=GUEST_NICS / NODE_GPUS)
AT_ONCE = 64
"""Tokens between whose runs a time is a straight line, like 1, `ends` and beyond: NCCL EP's SMs take 64 tokens at a time."""


@frozen_keywords
class CallCase(EpCase):
    """One call of `library` in `mode` on `nodes` NVLink domains. `fp8`: rows of Dispatch. `capacity`: tokens per GPU of the buffers."""

    library: str
    mode: str
    regime: str
    nodes: int
    fp8: bool
    capacity: int
    one_nic: bool = False
    """The GPUs of a node share one NIC."""

    @property
    def call(self) -> Library:
        """What the library does."""
        return LIBRARIES[self.library, self.mode]

    def options(self) -> Options:
        """Options of the system, sorted by name."""
        buffers = (
            (("buffer_tokens", self.capacity), *((name, int(value)) for name, value in RELEASED.items())) if self.call.system == "nccl-ep" else ()
        )
        return (*buffers, *((("dispatch", "fp8"),) if self.fp8 else ()))

    def run_key(self) -> Hashable:
        """Calls with one layout share the runs of their system."""
        return self.call.system, self.nodes, self.one_nic, self.layout(), self.options()

    def effort(self) -> int:
        """Token rows of the runs."""
        return self.gpus * self.call.ends[self.nodes > 1][1] * self.topk


def program_us(case: CallCase, constants: Constants) -> float:
    """Time of the call: host and device (module docstring)."""
    return call_us(case, constants, case.call, *device_us(case, constants))


def call_us(case: CallCase, constants: Constants, call: Library, there: float, back: float) -> float:
    """Time of a call of the kind `call` whose Dispatch and Combine take `there` and `back` on the GPUs alone."""
    host = constants["lib.host_grace_us"] if case.gpu in GRACE else constants["lib.host_x86_us"] * load_cluster(CLUSTERS[case.gpu]).host_factor
    slow = constants["lib.few_sms"] if call.few and case.nodes == 1 and case.gpus > 2 else 1.0
    proxied = PROXIED if case.nodes > 1 and case.library == "uccl-ep" else (0, 0)
    there, back = (slow * us + n * PROXY_STEPS * host for us, n in zip((there, back), proxied, strict=True))
    alone = {"dispatch": (there,), "combine": (back,), "roundtrip": (there, back)}[case.verb]
    if case.regime in ("graph", KERNEL):
        return sum(alone) - len(alone) * (launch_us(load_gpu(case.gpu), constants) if case.regime == KERNEL else 0.0)
    cast = CAST_STEPS if case.fp8 and case.mode == "normal" else 0
    dispatch, both = (steps + cast for steps in call.steps)
    if case.verb == "combine":
        return _combine_us(case, host, (call.first, cast, dispatch, both), there, back, constants["deepep.call_us"])
    steps, device = dispatch if case.verb == "dispatch" else both, sum(alone)
    waited = (call.first + cast) * host if case.regime == "drained" else 0.0
    return max(steps * host, waited + device)


def _combine_us(case: CallCase, host: float, steps: tuple[int, int, int, int], there: float, back: float, events_us: float) -> float:
    """Time of Combine alone. On a drained GPU it follows a Dispatch that is not in its time, without a wait of the host in between.

    Its time begins when the stream has done Dispatch: the host may be ahead of it, and `events_us` pass between its events besides the kernel.
    `steps`: those up to the first kernel, of the cast, up to the end of Dispatch, and of both.
    """
    first, cast, dispatch, both = steps
    if case.regime != "drained":
        return max((both - dispatch) * host, back)
    reached = max(dispatch * host, (first + cast) * host + there)
    launched = (dispatch + min(first, both - dispatch)) * host
    return max(both * host - reached, max(events_us, launched - reached) + back)


def device_us(case: CallCase, constants: Constants) -> tuple[float, float]:
    """Times in us of Dispatch and Combine on the GPUs alone, from runs with few tokens and lines between and beyond them."""
    near, far = case.call.ends[case.nodes > 1]
    most = case.capacity if case.call.system == "nccl-ep" else far
    knots = sorted({1, *(min(tokens, most) for tokens in (AT_ONCE, near, far))})
    machine_of = one_domain if case.nodes == 1 else SHARED if case.one_nic else machine
    marks = ("scan", "permute") if case.call.system == "nccl-ep" else ("received",)
    runs = []
    for tokens in knots:
        *begun, received, end = marks_us(case.call.system, replace(case, tokens=tokens), constants, marks, (near, far), uniform, machine_of)
        runs.append((received - sum(begun), end - received))
    there, back = (_line(case.tokens, knots, [run[i] for run in runs]) for i in (0, 1))
    return there, back


def _line(tokens: int, knots: list[int], times: list[float]) -> float:
    if tokens <= knots[-1]:
        return float(np.interp(tokens, knots, times))
    return times[-1] + (tokens - knots[-1]) / (knots[-1] - knots[-2]) * (times[-1] - times[-2])


def one_domain(gpu: str, gpus: int, constants: HashableConstants) -> Cluster:
    """GPUs of one NVLink domain: a node, or trays of a rack."""
    return replace(load_cluster(RACKS.get(gpu) or CLUSTERS[gpu]).with_gpus(gpus), constants=constants)


def _is_call(m: Measurement) -> bool:
    """Whether a row names its library and its regime."""
    named = "regime" in m.config or str(m.config.get("timing", "")).lower().startswith(DRAINED)
    return m.kind in KINDS and "library" in m.config and named


def _nodes_of(m: Measurement) -> int:
    """NVLink domains of a row."""
    return int(number(m, "nodes")) if m.config.get("crosses_nodes_by_rdma", False) else 1


def _regime_word(m: Measurement) -> str:
    """One of `REGIMES`, or `KERNEL`."""
    found = str(m.config.get("regime", "drained")).replace(FRESH, REGIMES[0])
    if found not in (*REGIMES, KERNEL):
        raise Unsupported(f"regime {found[:20]!r}, expected {', '.join(REGIMES)}")
    return found


def _check_domain(gpu: str, gpus: int) -> None:
    most = load_cluster(RACKS[gpu]).max_gpus if gpu in RACKS else None
    if most is None or gpus > most:
        check_cluster(gpu, gpus)


def _case(m: Measurement) -> CallCase:
    nodes, library, mode = _nodes_of(m), str(m.config["library"]), str(m.config.get("mode", "normal"))
    if (library, mode) not in LIBRARIES:
        known = ", ".join(f"{name} {word}" for name, word in LIBRARIES)
        raise Unsupported(f"library {library[:20]!r} in mode {mode[:20]!r}, expected one of {known}")
    read = ep_fields(m, check_nodes if nodes > 1 else _check_domain)
    if nodes > 1 and read["gpus"] != nodes * NODE_GPUS:
        raise Unsupported(f"{read['gpus']} GPUs on {nodes} nodes, expected {NODE_GPUS} a node")
    fp8 = dtype_of(m, "dispatch_dtype", "dtype", expected=("fp8", "bf16")) == "fp8"
    if fp8 and not LIBRARIES[library, mode].fp8:
        raise Unsupported(f"FP8 rows of {library}: the library does not convert rows")
    given = int(number(m, "capacity")) if "capacity" in m.config else CAPACITIES.get(str(m.config.get("phase", "")), 0)
    return CallCase(
        **read,
        verb=KINDS[m.kind],
        library=library,
        mode=mode,
        regime=_regime_word(m),
        nodes=nodes,
        fp8=fp8,
        capacity=max(given, read["tokens"]),
        one_nic=nodes > 1 and library == "deepep-v2" and "virtualised guests" in str(m.config.get("nic_snapshot", "")),
        dtypes=(f"dispatch {'fp8' if fp8 else 'bf16'}", "combine bf16"),
        shape=label(m, "library", "mode", "ep"),
    )


@family("library-calls", belongs=lambda m: _is_call(m) and _nodes_of(m) == 1, program_us=program_us)
def _call_case(m: Measurement) -> CallCase:
    """The case of a call inside one NVLink domain."""
    return _case(m)


@family("library-calls-internode", belongs=lambda m: _is_call(m) and _nodes_of(m) > 1, program_us=program_us)
def _nodes_case(m: Measurement) -> CallCase:
    """The case of a call over nodes, whose NICs no row names."""
    return _case(m)
