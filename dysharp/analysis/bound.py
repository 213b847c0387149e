"""Lower bounds of a layer's time: for one Program on its hardware, and for every system on one workload."""

import numpy as np

from dysharp.analysis.count import TERMS, WireTable, wire_table
from dysharp.base import F64, I64, PS_PER_US, Amounts, Bools, SimulationError, frozen
from dysharp.program import START, Head, Kind, Program, Tail, link_name
from dysharp.specs import Cluster, Model
from dysharp.workload import Routing, SubLayer, Work, rows_per_slot, switch_multicast, traffic

_MAX_PS = 2.0**63  # of int64


@frozen
class Bound:
    """A lower bound in microseconds. `terms` sums to `us`. `resource`: the busiest resource, such as "gpu[3].down"."""

    us: float
    resource: str
    terms: Amounts


def program_bound(program: Program, wires: WireTable | None = None, busy: I64 | None = None) -> Bound:
    """The largest busy time of any resource of `program`, plus the head and tail latency that no order of ops avoids.

    | resource | busy time | head and tail latency |
    |---|---|---|
    | link direction (of each network) | all wire bytes | one hop before a down link, one hop after any link |
    | SM pool | duration of all tasks, over the slots | a delivery before GEMMs that all wait, or after GEMMs |
    | shared memory | bytes of all tasks | as for an SM pool |

    A delivery before the GEMMs counts where all GEMMs wait for transfers. A delivery after the GEMMs counts where
    transfers wait for all GEMMs. Wire bytes: payload, headers, requests, acks, notifications.

    Acknowledgements need link time in any order, because they drain in idle gaps at line rate. The tail of a link is
    only one hop: the last bytes of a direction may be acknowledgements, and no op waits for acknowledgements longer than the constant `ack`.

    `wires`, `busy`: `wire_table` and `pool_busy_ps` of the Program, if the caller has them. Keys of `terms`: payload, headers, requests, acks,
    notifications; or compute (late_start: a rank that starts late); or memory; and head_latency, tail_latency. Zero terms are left out.
    """
    table = wire_table(program) if wires is None else wires
    candidates = []
    hops, rates = program.hop_ps, program.port_rate
    for net in range(program.n_nets):
        mine = slice(net * program.n_nodes, (net + 1) * program.n_nodes)
        hop = float(hops[net])
        for side, (by_node, head) in enumerate(((table.up[mine], 0.0), (table.down[mine], hop))):
            took = by_node.sum(axis=1) * PS_PER_US / rates[mine]
            node = int(took.argmax())
            if took[node]:
                ps = by_node[node] * PS_PER_US / rates[mine][node]
                terms = {name: float(ps[i]) for i, name in enumerate(TERMS)}
                terms |= {"head_latency": head, "tail_latency": hop}
                candidates.append((link_name(program, net, node, side), terms))
    busy = pool_busy_ps(program) if busy is None else busy
    if busy.any():
        head, tail = _compute_ends(program)
        ends = {"head_latency": float(head), "tail_latency": float(tail)}
        share, moved = busy / program.pools.slots, _memory_busy_ps(program)
        pool, node = int(share.argmax()), int(moved.argmax())
        name = program.pools.name[pool]
        term = "late_start" if name.endswith(f".{START}") else "compute"
        candidates.append((name.replace("node[", "gpu["), {term: float(share[pool])} | ends))
        candidates.append((f"gpu[{node}].memory", {"memory": float(moved[node])} | ends))
    if not candidates:
        return Bound(0.0, "none", {})
    resource, terms = max(candidates, key=lambda c: sum(c[1].values()))
    in_us = {name: ps / PS_PER_US for name, ps in terms.items() if ps > 0}
    return Bound(sum(in_us.values()), resource, in_us)


def pool_busy_ps(program: Program) -> I64:
    """`[n_pools]` int64: slot-picoseconds of all COMPUTE and DELAY ops of each pool, waits for memory excluded."""
    ops, took = _of_tasks(program, program.durations)
    pool = program.issuers.pool[program.ops.issuer[ops]]
    busy = np.bincount(pool, weights=took, minlength=len(program.pools.node))
    if busy.max(initial=0) >= _MAX_PS:
        raise SimulationError(f"SM time of a GPU: found {busy.max() / PS_PER_US:.3g} us, expected less than {_MAX_PS / PS_PER_US:.3g} us")
    return busy.astype(np.int64)


def _memory_busy_ps(program: Program) -> F64:
    """`[n_nodes]` ps that each node's memory needs for the bytes of its tasks. 0: memory is not shared."""
    if not program.hardware.memory_rate:
        return np.zeros(program.n_nodes)
    ops, moved = _of_tasks(program, program.task_bytes)
    return np.bincount(program.ops.node[ops], weights=moved, minlength=program.n_nodes) * PS_PER_US / program.hardware.memory_rate


def _of_tasks(program: Program, table: I64) -> tuple[I64, I64]:
    """Ids of COMPUTE and DELAY ops, and per op the sum of its tasks' entries in `table` (durations or task_bytes)."""
    tasks, duration, timed = _template_columns(program)
    ops = np.flatnonzero(timed[program.ops.template])
    template = program.ops.template[ops]
    return ops, tasks[template] * table[duration[template], program.ops.rows[ops]]


def _template_columns(program: Program) -> tuple[I64, I64, Bools]:
    """Per template: number of tasks, row of durations, whether the template has a duration."""
    t = program.templates
    timed = np.array([x.kind in (Kind.COMPUTE, Kind.DELAY) for x in t], np.bool_)
    return np.array([x.tasks for x in t], np.int64), np.array([x.duration for x in t], np.int64), timed


def _compute_ends(program: Program) -> tuple[int, int]:
    """Unavoidable picoseconds before the first GEMM and after the last GEMM of any pool."""
    m, edges = program.hardware, program.edges
    delivery = min(m.local, 2 * int(program.hop_ps.min()))
    computes = np.isin(program.kinds(), (Kind.COMPUTE, Kind.DELAY, Kind.JOIN))
    waits, leads = np.zeros((2, program.n_ops), np.bool_)
    waits[edges.head[edges.head_kind == Head.OP_ISSUE]] = True
    waits[program.regions.row_notify[program.regions.row_notify >= 0]] = True
    leads[edges.tail[(edges.tail_kind == Tail.OP_DONE) | (edges.tail_kind == Tail.OP_ISSUED)]] = True
    head = 0 if (computes & ~waits).any() else delivery
    tail = 0 if (computes & ~leads).any() else delivery
    return head, tail


def workload_bound_us(
    model: Model, cluster: Cluster, routing: Routing, *, direction: str = "fwd", free_links: bool = False, free_gemms: bool = False,
    sizes: tuple[int, int, int] | None = None,
) -> float:  # fmt: skip
    """A lower bound in microseconds of this pass of this workload on this cluster, for every system.

    The bound is the larger of two times:

    - Links: payload of the hottest GPU and direction. A token with a remote GPU goes up once. Every needed remote token
      comes down once. The partial sum of every remote (token, GPU) pair goes up once. One sum per token comes down.
    - GEMMs: floating-point operations of the busiest GPU at the peak rate of the GEMM type. A backward pass has twice
      the operations of a forward pass, for gradients of data and of weights.

    - Without a switch a GPU has the links to the other GPUs in use.
    - Several domains, in place of links: payload of the NICs of the hottest domain together. A token with a remote domain
      leaves its domain once and enters each remote domain once; its sums come back the same way.

    `free_links`: GEMMs alone, for a system whose links cost nothing by declaration ("ideal"). `free_gemms`: links alone, for a pass without GEMMs.
    `sizes`: bytes of a row out, of a partial sum and of a sum, of a switch that converts; None = of the model's rows.
    """
    rows = rows_per_slot(routing).reshape(routing.n_gpus, -1).sum(axis=1)
    flops = 2 * int(rows.max(initial=0)) * model.hidden * model.expert_hidden * model.n_matrices
    flops *= 2 if direction == "bwd" else 1
    gemm_us = 0.0 if free_gemms else flops / cluster.peak_flops_per_us(model.gemm_dtype)
    if free_links:
        return gemm_us
    if cluster.domains > 1:
        return max(gemm_us, _domain_bound_us(model, cluster, routing))
    least, (out, back, total) = traffic(routing, "multicast", 1), sizes or (model.row_bytes,) * 3
    up = out * least["dispatch"]["up_per_gpu"] + back * least["combine"]["up_per_gpu"]
    down = out * least["dispatch"]["down_per_gpu"] + total * least["combine"]["down_per_gpu"]
    return max(gemm_us, max(int(up.max(initial=0)), int(down.max(initial=0))) / _links_rate(cluster))


def _links_rate(cluster: Cluster) -> int:
    """Bytes per us of all links of a GPU in one direction."""
    return cluster.link_bytes_per_us if cluster.n_switches else max(1, cluster.n_gpus - 1) * cluster.pair_bytes_per_us


def _nic_rates(cluster: Cluster) -> I64:
    """`[n_gpus]` bytes per us of the NICs of each GPU."""
    assert cluster.scale_out is not None
    return np.array(cluster.scale_out.rates(cluster.n_gpus) or (cluster.scale_out.rate,) * cluster.n_gpus, np.int64)


def collective_bound_us(work: Work, cluster: Cluster) -> float:
    """A lower bound in microseconds of a collective on this cluster, for every system: the bytes that no system avoids (`least_bytes`).
    Of a sub-layer: these bytes, or both GEMMs at the BF16 peak.

    On all links of the busiest GPU together, its NIC included. Several domains: also on the NICs of the busiest domain together.
    """
    rate, least = _links_rate(cluster), max(work.least_bytes(in_switch=bool(cluster.n_switches)))
    if isinstance(work, SubLayer):
        return max(least / rate, sum(work.flops) / cluster.peak_flops_per_us("bf16"))
    if cluster.scale_out is None or cluster.domains == 1:
        return least / rate
    nics = _nic_rates(cluster)
    near, rates = least / (rate + int(nics.max())), nics.reshape(cluster.domains, -1).sum(axis=1)
    own = np.array(work.shares, np.int64).reshape(cluster.domains, -1).sum(axis=1)
    size, per_domain = work.size, cluster.domain_gpus
    far = {"all-gather": np.maximum(own, size - own), "reduce-scatter": np.maximum(own, size - own)}
    far["all-to-all"] = np.maximum(per_domain * (size - own), (work.gpus - per_domain) * own)  # out of the domain, into it
    return max(near, float((far.get(work.operation, np.full(cluster.domains, size)) / rates).max()))


def _domain_bound_us(model: Model, cluster: Cluster, routing: Routing) -> float:
    """Time in us in which the NICs of the hottest domain move what no system avoids."""
    leave = switch_multicast(routing, cluster.domain_gpus).far
    once, each, rates = (per_gpu.reshape(cluster.domains, -1).sum(axis=1) for per_gpu in (*leave, _nic_rates(cluster)))
    return float(((once + each) * model.row_bytes / rates).max())
