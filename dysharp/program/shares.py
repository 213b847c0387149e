"""Shares of pools (docs/design/0022, A share of the SMs): SMs that communication kernels keep.

`with_kernel_sms`: communication kernels keep SMs of their GPU while they run, so GEMMs beside them have fewer. All GEMMs of a GPU have one share
of its SMs. The share has fewer slots from the end of the first DELAY of a communication operator on the GPU until the last one has ended.
`System.plan` applies this to backward passes and `merge` to all parts: a forward pass alone has no GEMM beside a kernel. In a merge the parts of
a GPU have one such share in common (`common_shares`).
"""

from dataclasses import replace

import numpy as np

from dysharp.base import I32, Array, Bools, ProgramError
from dysharp.program.names import check_range, check_ranges, fail_where
from dysharp.program.schema import Nature
from dysharp.program.skew import with_edges, with_ops
from dysharp.program.tables import Head, Kind, Program, Shares, Tail, Template


def more_of(shares: Shares) -> Array:
    """`Shares.split_more`, 0 where there is none."""
    return np.zeros_like(shares.split_op) if shares.split_more is None else shares.split_more


def with_kernel_sms(program: Program) -> Program:
    """`program` with the SMs that each of its communication kernels keeps (`Declared.kernel_sms`). One without GEMMs, or with shares, stays as it
    is."""
    n_sm = program.declared.kernel_sms
    issuers = np.unique(program.ops.issuer[program.kinds() == Kind.COMPUTE])
    pools = np.unique(program.issuers.pool[issuers])
    if n_sm <= 0 or not len(pools) or program.shares is not None:
        return program
    share_of = np.full(len(program.pools.node) + 1, -1, np.int32)
    share_of[pools] = np.arange(len(pools))
    kernels = [_kernel(program, name) for name in program.with_nature(Nature.COMMUNICATION)]
    before = np.cumsum([0, *(len(first) for first, _, _ in kernels)])
    first, tails = (np.concatenate([kernel[i] for kernel in kernels]) for i in (0, 2))
    ends = np.concatenate([kernel[1] + n for kernel, n in zip(kernels, before.tolist(), strict=False)])
    join = program.n_ops + np.arange(len(first), dtype=np.int32)
    template = Template("kernel.end", Kind.JOIN, program.host_operator, "join")
    node = program.ops.node[first]
    program = with_edges(with_ops(program, template, {"node": node}), [(Tail.OP_DONE, tails, join[ends])])
    program = replace(program, issuers=replace(program.issuers, share=share_of[program.issuers.pool]))
    changes = [
        (int(op), share, sign * n_sm)
        for ops, sign in ((first, -1), (join, 1))
        for op, gpu in zip(ops, node, strict=True)
        for share in np.flatnonzero(program.pools.node[pools] == gpu).tolist()
    ]
    op, share, more = np.array(sorted(changes), np.int32).reshape(-1, 3).T
    return replace(program, shares=Shares(pools.astype(np.int32), program.pools.slots[pools], op, share, np.zeros_like(op), more))


def _kernel(program: Program, name: str) -> tuple[I32, I32, I32]:
    """Of operator `name`: `[gpus]` first DELAY on each GPU that has any; the ops that the end waits for, as places in this array and as ids.

    An op that another op of the operator waits for is not waited for.
    """
    ops, e = program.ops, program.edges
    of = np.array([t.operator == name for t in program.templates], np.bool_)[ops.template]
    last: Bools = of & (program.kinds() == Kind.DELAY)
    gpus, first = np.unique(ops.node[last], return_index=True)
    start: I32 = np.flatnonzero(last)[first].astype(np.int32)
    inner = (e.tail_kind == Tail.OP_DONE) & (e.head_kind == Head.OP_ISSUE)
    tail, head = e.tail[inner], e.head[inner]
    last[tail[of[head]]] = False
    last[start] = True
    tails = np.flatnonzero(last).astype(np.int32)
    return start, np.searchsorted(gpus, ops.node[tails]).astype(np.int32), tails


def common_shares(program: Program) -> Program:
    """A merge whose parts lose SMs to kernels: the GEMMs of all parts on a pool have one share, so each loses the SMs of all kernels.

    Issuers with another share keep it.
    """
    s, i = program.shares, program.issuers
    if s is None or s.split_more is None or i.share is None or not s.split_more.any():
        return program
    kept = np.unique(s.split_share[s.split_more != 0])
    pools, first = np.unique(s.pool[kept], return_index=True)
    one = np.full(len(program.pools.node) + 1, -1, np.int32)
    one[pools] = kept[first]
    moved = np.arange(len(s.pool) + 1, dtype=np.int32)
    moved[kept] = one[s.pool[kept]]
    moved[-1] = -1
    share = moved[i.share]
    if program.ops.chain is None:  # an op of a chain has no share
        share = np.where(share < 0, one[i.pool], share).astype(np.int32)
    return replace(program, issuers=replace(i, share=share), shares=replace(s, split_share=moved[s.split_share]))


def check_shares(p: Program) -> None:
    """An issuer with a share has the pool of the share, and none of its ops is in a chain, which keeps a slot between its ops."""
    s, own = p.shares, p.issuers.share
    if s is None or own is None:
        return
    check_ranges(s, "share", pool=(0, len(p.pools.node)))
    check_range(own, -1, len(s.pool), "issuer {i}: share")
    check_range(s.split_op, 0, p.n_ops, "split {i}: op")
    check_range(s.split_share, 0, len(s.pool), "split {i}: share")
    more = more_of(s)
    fixed = more == 0
    for most, share in ((s.most, np.arange(len(s.pool))), (s.split_most[fixed], s.split_share[fixed]), (np.abs(more[~fixed]), s.split_share[~fixed])):
        slots = p.pools.slots[s.pool[share]]
        fail_where((most < 1) | (most > slots), lambda i, m=most, n=slots: f"share: found {m[i]} slots, expected 1 .. {n[i]} of its pool")  # type: ignore[misc]
    if (np.diff(s.split_op) < 0).any():
        raise ProgramError("splits: found an op behind a larger one, expected rising ops")
    mine = np.flatnonzero(own >= 0)
    pool = s.pool[own[mine]]
    fail_where(p.issuers.pool[mine] != pool, lambda i: f"issuer {mine[i]}: found a share of pool {pool[i]}, expected its own pool")
    if p.ops.chain is not None:
        shared = (p.ops.chain >= 0) & (np.append(own, -1)[p.ops.issuer] >= 0)
        fail_where(shared, lambda i: f"op {i}: found a chain and an issuer with a share of its pool, expected one of both")
