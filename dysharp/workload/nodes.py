"""Load of NVLink and NICs between NVLink domains, by the scheme in which rows travel (`dysharp routing --domain`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dysharp.errors import ConfigError
from dysharp.specs import Model
from dysharp.workload.levels import LEVELS, expected_domains
from dysharp.workload.make import make_routing
from dysharp.workload.routing import Routing, max_over_mean, needed_gpus
from dysharp.workload.traffic import Rows

SCHEMES = {"two_hop": "two hops", "direct": "a row per expert", "dysharp": "multicast (hypothetical switch)"}
"""Scheme of `levels` -> how it is printed."""


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Rows of Dispatch in one class of links. Combine mirrors them: its rows in are Dispatch's rows out."""

    rows_out: float
    """Rows that leave a GPU by these links per own token, mean over GPUs."""
    rows_in: float
    out_max_mean: float
    """Largest rows out of a GPU, divided by the mean; 1 where nothing leaves."""
    in_max_mean: float


@dataclass(frozen=True, slots=True)
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
    nvlink: LinkLoad
    nic: LinkLoad


def describe_nodes(
    source: str, n_gpus: Sequence[int], domain_gpus: int, *, model: Model, tokens_per_gpu: int | None = None, seed: int = 0
) -> list[NodeRow]:
    """A row per number of GPUs and scheme, for a routing string. Raises ConfigError for GPUs that are no whole domains."""
    tokens = model.tokens_per_gpu if tokens_per_gpu is None else tokens_per_gpu
    for count in n_gpus:
        if domain_gpus < 1 or count % domain_gpus or count == domain_gpus:
            raise ConfigError(f"describe: found {count} GPUs, expected a multiple of {domain_gpus} above it (GPUs of one NVLink domain)")
    return [row for count in n_gpus for row in nodes_of(make_routing(source, model, count, tokens, seed=seed), domain_gpus)]


def nodes_of(routing: Routing, domain_gpus: int) -> list[NodeRow]:
    """The rows of one Routing, one per scheme."""
    domains, experts = routing.n_gpus // domain_gpus, routing.n_experts
    needed = needed_gpus(routing).reshape(-1, domains, domain_gpus).any(axis=2).sum() / routing.n_tokens
    uniform = None if experts % domains else expected_domains(domains, experts, routing.topk)
    rows = []
    for scheme in SCHEMES:
        nvlink, nic = (_load(level, routing) for level in LEVELS[scheme](routing, domain_gpus))
        rows.append(NodeRow(routing.description, routing.n_gpus, domain_gpus, scheme, float(needed), uniform, nvlink, nic))
    return rows


def _load(rows: Rows, routing: Routing) -> LinkLoad:
    out, into = (np.asarray(side, np.float64) for side in rows)
    each = routing.tokens_per_gpu
    return LinkLoad(float(out.mean()) / each, float(into.mean()) / each, max_over_mean(out), max_over_mean(into))
