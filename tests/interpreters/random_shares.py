"""Seeded random Programs with shares of pools that change while they run (docs/design/0022, A share of the SMs)."""

from dataclasses import replace

import numpy as np

from dysharp.program.tables import Program, Shares
from tests.interpreters.random_programs import Generator


class _Gangs(Generator):
    gangs_hold = False  # one that waits for its share would keep what others need to end


def random_shares(seed: int, *, size: str = "tiny") -> Program:
    """A legal Program with shares that cannot deadlock. Equal arguments give equal Programs."""
    more = np.random.default_rng((seed, 41))
    generator = _Gangs(np.random.default_rng((seed, 43)), size)
    p = generator.built(more)
    pool = np.repeat(np.arange(len(p.pools.slots)), 2)  # two shares of a pool, together less or more than the pool
    most = more.integers(1, p.pools.slots[pool] + 1)
    chosen = 2 * p.issuers.pool + more.integers(0, 2, len(p.issuers.pool))
    own = np.where((p.issuers.pool >= 0) & (more.random(len(chosen)) < 0.8), chosen, -1)
    n = int(more.integers(0, 12))
    share = more.integers(0, len(pool), n)
    columns = (pool, most, np.sort(more.integers(0, p.n_ops, n)), share, more.integers(1, p.pools.slots[pool[share]] + 1))
    # Some splits add slots; the only split of a share may take all but one, so that nothing waits for ever.
    first, only = share, np.bincount(share, minlength=len(pool))[share] == 1
    added = np.where(only, 1 - most[first], more.integers(1, 3, n)) * (more.random(n) < 0.5)
    columns = (*columns, np.clip(added, -p.pools.slots[pool[share]], p.pools.slots[pool[share]]))
    return replace(p, issuers=replace(p.issuers, share=own.astype(np.int32)), shares=Shares(*(column.astype(np.int32) for column in columns)))
