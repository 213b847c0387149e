"""Seeded random merges: Programs of `random_programs` and `random_sums` on one machine, with edges between them, without deadlock.

Edges lead from a smaller label to a larger one, and no gang holds a semaphore, so a part never waits for a later one but for slots, links and tables.
"""

from itertools import pairwise

import numpy as np

from dysharp.program.merge import Cross, Part, merge
from dysharp.program.tables import Program
from tests.interpreters.random_bulk import Bulks
from tests.interpreters.random_hardware import chance
from tests.interpreters.random_points import change_points
from tests.interpreters.random_programs import Generator
from tests.interpreters.random_sums import Sums

LABELS = ("A", "B", "C")
POINTS = ("issued", "delivered", "rows", "respond", "pace", "early", "by data")
"""Other points (`random_points.PARTS`) that a part may have. Chains hold slots that others need; edges may not lead to counted JOINs."""


class _Guest(Generator):
    gangs_hold = False


class _GuestSums(Sums):
    gangs_hold = False
    alike = True


class _GuestBulks(Bulks):
    train_bytes = 3000  # the longest row of a guest


def random_parts(seed: int, *, size: str = "tiny", packets: bool = False) -> list[Part]:
    """Two or three random Programs on one machine. `packets`: such that the packet level runs."""
    parts: list[Part] = []
    first = np.random.default_rng((seed, 17))
    places = int(first.choice((0, 1, 1, 2, 3)))
    for i in range(int(first.integers(2, 4))):
        rng, more = np.random.default_rng((seed, i, 19)), np.random.default_rng((seed, i, 23))
        like = parts[0].program if parts else None
        maker: Generator
        if seed % 5 == 4 and i != 1 and not packets:
            maker = _GuestBulks(rng, more, size, like)
        elif chance(more, 0.3):
            maker = sums = _GuestSums(rng, more, size, like)
            sums.places = places
        else:
            maker = _Guest(rng, size, like)
        program = maker.built(more)
        if not packets and chance(more, 0.5):
            program = change_points(program, more, tuple(point for point in POINTS if chance(more, 0.4)) or POINTS[:1])
        parts.append(Part(LABELS[i], program, layer=i, microbatch=seed % 3))
    return parts


def random_merge(seed: int, *, size: str = "tiny", packets: bool = False) -> Program:
    """A legal merge that cannot deadlock. One in three has a stream, one in three edges between ops, one in three neither."""
    parts, rng = random_parts(seed, size=size, packets=packets), np.random.default_rng((seed, 29))
    if seed % 3 == 0:
        return merge(parts, streams=[[part.label for part in parts]])
    edges = []
    for one, other in pairwise(parts):
        n = int(rng.integers(1, 8)) if seed % 3 == 1 else 0
        edges.append(Cross(other.label, rng.integers(0, other.program.n_ops, n), one.label, rng.integers(0, one.program.n_ops, n)))
    return merge(parts, edges=edges)


def memory_ps(program: Program) -> float:
    """Time of the busiest node's shared memory for all bytes of transfers and tasks; 0 without shared memory."""
    p, owner = program, np.repeat(np.arange(program.n_ops), np.diff(program.members.ptr))
    if not p.hardware.memory_rate:
        return 0.0
    far = p.members.node != p.ops.node[owner]
    sent = np.where(np.bincount(owner, weights=far, minlength=p.n_ops) > 0, p.ops.bytes, 0)
    moved = np.bincount(p.ops.node, weights=sent, minlength=p.n_nodes) + np.bincount(p.members.node, weights=p.ops.bytes[owner], minlength=p.n_nodes)
    tasks, duration = (np.array([getattr(t, name) for t in p.templates])[p.ops.template] for name in ("tasks", "duration"))
    pooled = np.flatnonzero(duration >= 0)
    taken = tasks[pooled] * p.task_bytes[duration[pooled], p.ops.rows[pooled]]
    moved += np.bincount(p.ops.node[pooled], weights=taken, minlength=p.n_nodes)
    return float(moved.max() * 1e6 / p.hardware.memory_rate)
