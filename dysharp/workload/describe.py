"""Imbalance and distinct GPUs of a recording, layer by layer, for any GPU counts (`dysharp routing`); with `--domain` the load of NVLink and NICs
between NVLink domains, too, by the scheme in which rows travel."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dysharp.base import I32, I64, ConfigError, f64, frozen
from dysharp.specs import Model
from dysharp.workload.closed import expected_copies, uniform_p
from dysharp.workload.counts import Counts, read_counts
from dysharp.workload.levels import LEVELS
from dysharp.workload.make import make_routing
from dysharp.workload.placement import auto, replica_slots
from dysharp.workload.routing import Placement, Routing, count_ids, distinct_gpus, gpus_of, imbalance, max_over_mean, needed_gpus, variation
from dysharp.workload.spec import DISTRIBUTIONS, parse_routing
from dysharp.workload.traces import Recording, copies_max_mean, load_trace
from dysharp.workload.traffic import Rows

_MAX_GPUS = 1 << 12


@frozen
class GpuRow:
    """Imbalance for one number of GPUs. A figure of tokens is None if only counts per expert are known."""

    n_gpus: int
    copies_max_mean: float
    """Largest number of (token, expert) pairs of a GPU, divided by the mean."""
    tokens_max_mean: float | None
    """Largest number of tokens of a GPU, divided by the mean. A GPU counts each token once."""
    distinct_gpus: float | None
    """Mean distinct GPUs per token, the source GPU included."""
    distinct_gpus_uniform: float | None
    """Distinct GPUs under uniform routing, by closed form. None: the experts are no multiple of the GPUs."""
    note: str
    """Replicas of the placement in words, "" for none."""


@frozen
class LayerRow:
    """One layer of a recording."""

    source: str
    layer: int | None
    n_experts: int
    topk: int | None
    n_tokens: int | None
    max_mean: float
    cv: float
    cv_noise: float | None
    """Coefficient of variation of uniform routing with as many tokens. None: the tokens are not known."""
    n_unused: int
    gpus: tuple[GpuRow, ...]


def describe(
    source: str, n_gpus: Sequence[int] = (8, 16, 32, 64), *, model: Model | None = None, tokens_per_gpu: int | None = None, seed: int = 0
) -> list[LayerRow]:
    """Rows for a recording (file or packaged name), a CSV of counts, or any routing string.

    A distribution such as `lognormal:0.65`, and `loads:NAME`, need `model`. It gives one row for each number of GPUs, with `tokens_per_gpu` tokens
    (default: the tokens of the model). Raises ConfigError for a file that cannot be read.
    """
    _check_gpus(n_gpus)
    name = source.partition(":")[0]
    if source.endswith(".csv"):
        path = source.removeprefix("counts:")
        return [row for table in read_counts(Path(path)).values() for row in _of_counts(table, None, n_gpus)]
    if name == "counts":
        return _of_counts_spec(source, n_gpus)
    if name == "trace":
        parsed = parse_routing(source)
        return _of_trace(load_trace(parsed.source), parsed.layer, n_gpus)
    if name not in DISTRIBUTIONS:
        return _of_trace(load_trace(source), None, n_gpus)
    if model is None:
        parse_routing(source)
        raise ConfigError(f"describe {source}: a distribution needs a model for its experts and top-k")
    tokens = model.tokens_per_gpu if tokens_per_gpu is None else tokens_per_gpu
    return [describe_routing(make_routing(source, model, count, tokens, seed=seed)) for count in n_gpus]


def describe_routing(routing: Routing) -> LayerRow:
    """The row of one Routing, for its number of GPUs and its placement."""
    load = count_ids(routing.expert, routing.n_experts)
    ratios, distinct = imbalance(routing), distinct_gpus(routing)
    closed = _closed_form(routing.n_experts, routing.n_gpus, routing.topk)
    gpu = GpuRow(routing.n_gpus, ratios.copies_max_mean, ratios.tokens_max_mean, distinct.with_source, closed, routing.placement.note)
    filled = int((routing.expert >= 0).any(axis=1).sum())
    return _layer_row(routing.description, None, load, routing.topk, filled, (gpu,))


def describe_trace(trace: Recording, n_gpus: Sequence[int]) -> list[LayerRow]:
    """The rows of a Recording in memory. Raises ConfigError as `describe`."""
    _check_gpus(n_gpus)
    return _of_trace(trace, None, n_gpus)


def _check_gpus(n_gpus: Sequence[int]) -> None:
    for count in n_gpus:
        if not 1 <= count <= _MAX_GPUS:
            raise ConfigError(f"describe: found {count} GPUs, expected 1 to {_MAX_GPUS}")


def _of_trace(trace: Recording, layer: int | None, n_gpus: Sequence[int]) -> list[LayerRow]:
    rows = range(len(trace.layers)) if layer is None else [trace.row_of(layer)]
    placements = [auto(trace.n_experts, count) for count in n_gpus]
    layers = []
    for row in rows:
        expert = trace.expert[row][trace.recorded(row)].astype(np.int32)
        if not len(expert):
            continue
        gpus = tuple(_gpu_row(expert, placed, trace.n_experts) for placed in placements)
        load = count_ids(expert, trace.n_experts)
        layers.append(_layer_row(trace.name, trace.layers[row], load, trace.topk, len(expert), gpus))
    if not layers:
        raise ConfigError(f"trace {trace.name}: no layer has a complete token")
    return layers


def _gpu_row(expert: I32, placed: Placement, n_experts: int) -> GpuRow:
    # One source GPU has all tokens here: the figures do not depend on the source GPU of a token.
    slot = replica_slots(expert, placed, n_experts)
    needs = gpus_of(slot, placed)
    copies = count_ids(slot, placed.n_slots).reshape(placed.n_gpus, -1).sum(axis=1)
    closed = _closed_form(n_experts, placed.n_gpus, expert.shape[1])
    distinct = float(needs.sum()) / len(expert)
    return GpuRow(placed.n_gpus, max_over_mean(copies), max_over_mean(needs.sum(axis=0)), distinct, closed, placed.note)


def _of_counts_spec(source: str, n_gpus: Sequence[int]) -> list[LayerRow]:
    parsed = parse_routing(source)
    tables = read_counts(Path(parsed.source))
    if parsed.model and parsed.model not in tables:
        raise ConfigError(f"{parsed.source}: no model {parsed.model[:60]!r}")
    chosen = [tables[parsed.model]] if parsed.model else list(tables.values())
    return [row for table in chosen for row in _of_counts(table, parsed.layer, n_gpus)]


def _of_counts(table: Counts, layer: int | None, n_gpus: Sequence[int]) -> list[LayerRow]:
    placements = [auto(table.n_experts, count) for count in n_gpus]
    rows = range(len(table.layers)) if layer is None else [table.row(layer, placements[0])]
    found = []
    for row in rows:
        gpus = tuple(GpuRow(p.n_gpus, copies_max_mean(table.count[row], p), None, None, None, p.note) for p in placements)
        found.append(_layer_row(table.model, table.layers[row], table.count[row], None, None, gpus))
    return found


def _layer_row(source: str, layer: int | None, load: I64, topk: int | None, n_tokens: int | None, gpus: tuple[GpuRow, ...]) -> LayerRow:
    noise = None if topk is None or n_tokens is None else ((1.0 - topk / load.size) / (n_tokens * (topk / load.size))) ** 0.5  # loads are binomial
    unused = int((load == 0).sum())
    return LayerRow(source, layer, load.size, topk, n_tokens, max_over_mean(load), variation(load), noise, unused, gpus)


def _closed_form(n_experts: int, n_gpus: int, topk: int) -> float | None:
    if n_experts % n_gpus:
        return None
    return n_gpus * uniform_p(n_experts, n_gpus, topk)


SCHEMES = {"two_hop": "two hops", "direct": "a row per expert", "dysharp": "multicast (hypothetical switch)"}
"""Scheme of `levels` -> how it is printed."""


@frozen
class _LinkLoad:
    """Rows of Dispatch in one class of links. Combine mirrors them: its rows in are Dispatch's rows out."""

    rows_out: float
    """Rows that leave a GPU by these links per own token, mean over GPUs."""
    rows_in: float
    out_max_mean: float
    """Largest rows out of a GPU, divided by the mean; 1 where nothing leaves."""
    in_max_mean: float


@frozen
class NodeRow:
    """Dispatch of one routing on domains of `domain_gpus` GPUs, in one scheme."""

    source: str
    n_gpus: int
    domain_gpus: int
    scheme: str
    domains_per_token: float
    """Mean domains with experts of a token."""
    domains_uniform: float | None
    """The same under uniform routing without groups, by closed form. None: the experts are no multiple of the domains."""
    nvlink: _LinkLoad
    nic: _LinkLoad


def describe_nodes(
    source: str, n_gpus: Sequence[int], domain_gpus: int, *, model: Model, tokens_per_gpu: int | None = None, seed: int = 0
) -> list[NodeRow]:
    """A row per number of GPUs and scheme, for a routing string. Raises ConfigError for GPUs that are no whole domains."""
    tokens = model.tokens_per_gpu if tokens_per_gpu is None else tokens_per_gpu
    for count in n_gpus:
        if domain_gpus < 1 or count % domain_gpus or count == domain_gpus:
            raise ConfigError(f"describe: found {count} GPUs, expected a multiple of {domain_gpus} above it (GPUs of one NVLink domain)")
    return [row for count in n_gpus for row in _nodes_of(make_routing(source, model, count, tokens, seed=seed), domain_gpus)]


def _nodes_of(routing: Routing, domain_gpus: int) -> list[NodeRow]:
    """The rows of one Routing, one per scheme."""
    domains, experts = routing.n_gpus // domain_gpus, routing.n_experts
    needed = needed_gpus(routing).reshape(-1, domains, domain_gpus).any(axis=2).sum() / routing.n_tokens
    uniform = None if experts % domains else expected_copies(domains, experts, routing.topk)
    rows = []
    for scheme in SCHEMES:
        nvlink, nic = (_load(level, routing) for level in LEVELS[scheme](routing, domain_gpus))
        rows.append(NodeRow(routing.description, routing.n_gpus, domain_gpus, scheme, float(needed), uniform, nvlink, nic))
    return rows


def _load(rows: Rows, routing: Routing) -> _LinkLoad:
    out, into = (f64(side) for side in rows)
    each = routing.tokens_per_gpu
    return _LinkLoad(float(out.mean()) / each, float(into.mean()) / each, max_over_mean(out), max_over_mean(into))
