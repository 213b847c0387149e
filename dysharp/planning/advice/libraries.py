"""Which library's Dispatch and Combine are fastest, by machine, number of GPUs and tokens per GPU, with error bars from measured round trips."""

from collections.abc import Iterable, Mapping, Sequence

from dysharp.base import ByName, ConfigError, DysharpError, Texts, frozen, named
from dysharp.measured.calls import interval_of_call
from dysharp.measured.families.library_calls import CAPACITIES, LIBRARIES, RACKS, REGIMES, CallCase, one_domain, program_us
from dysharp.measured.internode import NODE_GPUS, machine
from dysharp.measured.intervals import Interval
from dysharp.measured.measurements import CLUSTERS, Unsupported
from dysharp.measured.trust import no_rows
from dysharp.runs import ModelSource
from dysharp.specs import Cluster, Model, load_cluster, load_model
from dysharp.specs.fitted import fitted_values
from dysharp.systems import get_system

BATCHES = (1, 8, 64, 256, 1024, 4096)
"""Tokens per GPU that are asked about by default."""
SIZES = (8, 16)
"""Numbers of GPUs that are asked about by default."""
MOST_LL = 256
"""Most tokens per GPU of low-latency kernels in the measured rows; buffers are sized for them."""
POOLS: Mapping[tuple[str, str, int], str] = {
    ("deepep-v2 normal", "h100-sxm", 2): "two sources differ by -56 to -36 %",
    ("deepep-v2 normal", "h100-sxm", 1): "sources differ by -37 to -18 %",
    ("deepep-v2 normal", "b200", 1): "sources differ by +19 to +35 %",
}
"""(library, GPU, nodes) -> by how much the rates of one source differ from another's on equal work: the pool of machines, not the kernel, decides.

Source: CollectiveX of 2026-08-31 against DeepEP's README and DeepEP V1 with 24 SMs on the same GPUs.
"""


REGIME_NOTES = {
    "drained": "each call finds an idle GPU and waits for the host's launches, as measured (--regime chained, graph: without that wait)",
    "chained": "calls of a loop that the host runs ahead of; no row of this regime is known, so no error bars",
    "graph": "calls inside a CUDA graph; no row of this regime is known, so no error bars",
}


@frozen
class Call:
    """A round trip of one library. `interval`: of measured round trips like it; None: none in this regime. `pool`: how far sources differ; ""."""

    library: str
    fp8: bool
    us: float
    interval: Interval | None
    pool: str

    def bar(self) -> tuple[float, float] | None:
        """(low, high) in us: nine of ten measured round trips are within this range of their prediction."""
        return None if self.interval is None else self.interval.around(self.us)

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        (low, high), e = self.bar() or (None, None), self.interval
        errors = {} if e is None else {"median_error": 100 * e.typical, "p90_error": e.usual, "rows": e.n, "own_rows": e.near}
        return named(self, "library", "fp8", "us") | {"low_us": low, "high_us": high, "sources": self.pool} | errors


@frozen
class LibraryCell:
    """One machine, number of GPUs and batch: the calls, fastest first, and {library: why it has none}."""

    cluster: str
    gpus: int
    nodes: int
    tokens: int
    calls: tuple[Call, ...]
    without: Mapping[str, str]

    def ties(self) -> tuple[Call, ...]:
        """The calls behind the first whose error bars overlap its bar."""
        bars = [(call, bar) for call in self.calls if (bar := call.bar()) is not None]
        return tuple(call for call, bar in bars[1:] if bar[0] <= bars[0][1][1])

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        ties = {"ties": [call.library for call in self.ties()]}
        return named(self, "cluster", "gpus", "nodes", "tokens", "calls") | ties | named(self, "without")

    @property
    def pools(self) -> Texts:
        """The libraries on which sources disagree here, with by how much."""
        return tuple(f"{call.library} on {self.gpus} GPUs of {self.cluster}: {call.pool}" for call in self.calls if call.pool)


@frozen
class LibraryAdvice:
    """What `dysharp advise MODEL --libraries` prints; `to_dict` is its `--json`."""

    model: str
    regime: str
    cells: tuple[LibraryCell, ...]
    notes: Texts

    def to_dict(self) -> ByName:
        """Plain values for JSON."""
        return named(self, "model", "regime", "cells", "notes")


def advise_libraries(
    model: ModelSource, clusters: Sequence[str], *, tokens: Iterable[int] = BATCHES, gpus: Iterable[int] = SIZES, regime: str = "drained"
) -> LibraryAdvice:
    """Round trips of all libraries on each of `clusters`, by number of GPUs and tokens per GPU.

    `clusters`: packaged hw-* clusters; GPUs of several nodes have one NIC of 400 Gb/s each. `regime`: "drained" (a call finds an idle GPU, as
    measured), "chained" or "graph". Raises ConfigError for wrong input.
    """
    found = load_model(model)
    if regime not in REGIMES:
        raise ConfigError(f"regime: found {regime[:20]!r}, expected {', '.join(REGIMES)}")
    batches, sizes = list(tokens), list(gpus)
    for name, values in (("tokens", batches), ("gpus", sizes)):
        if not values or min(values) < 1:
            raise ConfigError(f"{name}: found {values}, expected whole numbers of at least 1")
    machines = [_machine(name) for name in clusters]
    cells = tuple(
        _cell(found, cluster, size, batch, regime) for cluster in machines for size in sizes if _fits(cluster, size, found) for batch in batches
    )
    if not cells:
        where = f"{found.n_experts} experts on {', '.join(clusters)}"
        raise ConfigError(f"advise --libraries: found {sizes} GPUs for {where}, expected a divisor of the experts, in one domain or whole nodes")
    return LibraryAdvice(found.name, regime, cells, tuple(_notes(cells, machines, regime)))


def _machine(name: str) -> Cluster:
    cluster = load_cluster(name)
    if cluster.gpu not in CLUSTERS and cluster.gpu not in RACKS:
        known = ", ".join(sorted({*CLUSTERS, *RACKS}))
        raise ConfigError(f"advise --libraries: found cluster {cluster.name} of GPU {cluster.gpu or 'none'}, expected a cluster of {known}")
    return cluster


def _domain(cluster: Cluster) -> int:
    """GPUs of one NVLink domain of the machine."""
    return (cluster.max_gpus or cluster.n_gpus) if cluster.gpu in RACKS else NODE_GPUS


def _fits(cluster: Cluster, gpus: int, model: Model) -> bool:
    whole = gpus <= _domain(cluster) or (cluster.gpu not in RACKS and gpus % NODE_GPUS == 0)
    return gpus > 1 and whole and model.n_experts % gpus == 0


def _cell(model: Model, cluster: Cluster, gpus: int, tokens: int, regime: str) -> LibraryCell:
    nodes = max(1, gpus // _domain(cluster))
    calls, without = [], {}
    for library, mode in LIBRARIES:
        name = f"{library} {mode}"
        case = CallCase(
            gpu=cluster.gpu, gpus=gpus, nodes=nodes, hidden=model.hidden, experts=model.n_experts, topk=model.topk, tokens=tokens, verb="roundtrip",
            library=library, mode=mode, regime=regime, fp8=model.gemm_dtype == "fp8" and LIBRARIES[library, mode].fp8,
            capacity=max(tokens, CAPACITIES["decode" if tokens <= CAPACITIES["decode"] else "prefill"]),
        )  # fmt: skip
        try:
            without[name] = _why_not(case, model, cluster)
            if not without[name]:
                us = program_us(case, fitted_values())
                calls.append(Call(name, case.fp8, us, interval_of_call(case, us), POOLS.get((name, case.gpu, nodes), "")))
        except (DysharpError, Unsupported) as error:
            without[name] = str(error)
    ranked = tuple(sorted(calls, key=lambda call: call.us))
    return LibraryCell(cluster.name, gpus, nodes, tokens, ranked, {name: why for name, why in without.items() if why})


def _why_not(case: CallCase, model: Model, cluster: Cluster) -> str:
    """Why a library has no kernel for a call; "" where it has one."""
    if case.mode == "LL" and case.tokens > MOST_LL:
        return f"low-latency buffers hold {MOST_LL} tokens"
    system = get_system(case.call.system)
    if system.ships is not None and (why := system.ships.why_not(model, cluster)):
        return why.partition(" (")[0]
    here = (machine if case.nodes > 1 else one_domain)(case.gpu, case.gpus, ())
    return "" if system.reach.runs_on(here, "real") else "no kernels over nodes" if case.nodes > 1 else "other links than its kernels need"


def _notes(cells: Sequence[LibraryCell], machines: Sequence[Cluster], regime: str) -> list[str]:
    notes = ["round trips: Dispatch and Combine in one window, uniform routing, without GEMMs", REGIME_NOTES[regime]]
    notes += [line for cluster in machines if (line := no_rows(cluster)).startswith("no rows:")]
    pools = dict.fromkeys(text for cell in cells for text in cell.pools)
    if pools:
        notes.append(f"the pool of machines, not the kernel, decides: {'; '.join(pools)}")
    if any(call.interval is not None and not call.interval.near for cell in cells for call in cell.calls):
        notes.append("~ too few rows on this GPU: the bar is that of GPUs left out of the fit")
    if any(cell.nodes > 1 for cell in cells):
        notes.append("over nodes: one NIC of 400 Gb/s per GPU, as measured")
    notes.append(f"buffers of NCCL EP hold {CAPACITIES['decode']} tokens up to that batch, else {CAPACITIES['prefill']}")
    return notes
