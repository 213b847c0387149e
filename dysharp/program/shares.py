"""Shares of pools in a merge: how many slots a part holds at once, and when its share changes (docs/design/0022, A share of the SMs)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dysharp.errors import ProgramError
from dysharp.program.tables import Program, Shares

Array = NDArray[Any]
Place = tuple[str, str, int]
"""(label of a part, name of a pool, node)."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part's share of a pool has `slots` on the node of each of `after_ops` when this op of part `after` is done. Ids are those of the part."""

    part: str
    pool: str
    slots: int
    after: str
    after_ops: ArrayLike


def with_shares(
    program: Program, shares: Mapping[str, Mapping[str, int]], issuers: Mapping[str, range], splits: Sequence[tuple[Split, Array]]
) -> Program:
    """The merge `program` with a share for each part, pool and node of `shares` (by label and name of the pool).

    `issuers`: those of every part. `splits`: with their ops in the merge. Raises ProgramError for a pool that no issuer of the part has, an issuer
    with a share inside its part, a number of slots that the pool does not have, and a split of no share.
    """
    if not any(shares.values()) and not splits:
        return program
    old, names, has = program.shares, program.pools.name, program.issuers.pool
    own = np.full(len(has), -1, np.int32) if program.issuers.share is None else program.issuers.share.copy()
    rows = [] if old is None else list(zip(old.pool.tolist(), old.most.tolist(), strict=True))
    of: dict[Place, int] = {}
    for label, wanted in shares.items():
        for name, slots in sorted(wanted.items()):
            mine = np.array([i for i in issuers[label] if has[i] >= 0 and names[has[i]].partition("].")[2] == name], np.int64)
            if not len(mine) or (own[mine] >= 0).any():
                found = "an issuer with a share" if len(mine) else "no issuer"
                raise ProgramError(f"merge: part {label!r}: found {found} of a pool {name!r}, expected issuers that take what is free")
            for pool in np.unique(has[mine]).tolist():
                _check(program, label, pool, slots)
                own[mine[has[mine] == pool]] = of[label, name, int(program.pools.node[pool])] = len(rows)
                rows.append((pool, slots))
    changes = [] if old is None else list(zip(*(c.tolist() for c in (old.split_op, old.split_share, old.split_most, more_of(old))), strict=True))
    for split, ops in splits:
        for op in ops.tolist():
            share = of.get((split.part, split.pool, int(program.ops.node[op])), -1)
            if share < 0:
                raise ProgramError(f"merge: found a split of pool {split.pool!r} for part {split.part!r}, expected a part with a share of it")
            _check(program, split.part, rows[share][0], split.slots)
            changes.append((op, share, split.slots, 0))
    columns = [*np.array(rows, np.int32).reshape(-1, 2).T, *np.array(sorted(changes), np.int32).reshape(-1, 4).T]
    return replace(program, issuers=replace(program.issuers, share=own), shares=Shares(*columns))


def more_of(shares: Shares) -> Array:
    """`Shares.split_more`, 0 where there is none."""
    return np.zeros_like(shares.split_op) if shares.split_more is None else shares.split_more


def _check(program: Program, label: str, pool: int, slots: int) -> None:
    most = int(program.pools.slots[pool])
    if not 1 <= slots <= most:
        raise ProgramError(f"merge: part {label!r}: found a share of {slots} slots of {program.pools.name[pool]}, expected 1 .. {most}")
