"""Seeded random Programs whose copies wait in the switch for sums of all nodes (docs/design/0001, Gates)."""

from dataclasses import replace

import numpy as np

from dysharp.program.builder import To
from dysharp.program.tables import Alloc, Discipline, Head, Kind, Program, Tail, Template
from tests.interpreters.random_hardware import random_framings
from tests.interpreters.random_programs import Generator

SIZE = 32


class Gates(Generator):
    """As `Generator`, behind one or two generations of READY. A READY waits for a task of its own, so gates open in every order."""

    def __init__(self, rng: np.random.Generator, more: np.random.Generator) -> None:
        super().__init__(rng, "tiny")
        b, n, self.first = self.b, self.n_nodes, list[int]()
        self.cls = int(more.integers(len(b.classes)))
        if n == 1 or len(b.classes) == 1:  # data of the class of READY would hold READY back
            return
        ready = b.template(Template("ready", Kind.PUSH_REDUCE, "other", "control", cls=self.cls, framing=b.framing(random_framings(more, 1)[0])))
        duration = b.duration([0, 1, self.duration, 40 * self.duration])
        late = b.template(Template("late", Kind.DELAY, "other", "delay", tasks=1, duration=duration))
        for _ in range(int(more.integers(1, 3))):
            _, row, _ = b.regions(np.arange(n), np.ones(n, int), SIZE, 1, alloc=Alloc.PREFIX)
            first = b.sums(np.arange(n), np.full(n, n - 1), 0)
            pairs = more.permutation(np.flatnonzero(~np.eye(n, dtype=bool)))
            source, home = pairs // n, pairs % n
            alone = [b.issuer(i, Discipline.READY_FIFO, pool=b.pool(i, n)) for i in range(n)]
            tasks = b.ops(late, source, issuer=np.array(alone)[source], rows=more.integers(1, 4, len(source)))
            queues = np.array([b.issuer(i, Discipline.READY_FIFO) for i in range(n)])
            to = To(1, home, 1, row + home)
            ops = b.ops(ready, source, issuer=queues[source], bytes=SIZE, key=home, to=to, session=first + home)
            b.edges(Tail.OP_DONE, tasks + np.arange(len(source)), Head.OP_ISSUE, ops + np.arange(len(source)))
            self.n_ops += 2 * len(source)
            self.first.append(first)


def random_gates(seed: int) -> Program:
    """A legal Program that cannot deadlock; with one node or one class it has no gates."""
    rng, more = np.random.default_rng(seed), np.random.default_rng((seed, 41))
    generator = Gates(rng, more)
    program = generator.built(more)
    if not generator.first:
        return program
    t = [t.kind in (Kind.PUT, Kind.MULTICAST) and t.net == 0 and t.cls != generator.cls for t in program.templates]
    gated = np.array(t)[program.ops.template] & (more.random(program.n_ops) < 0.7) & ~np.isin(np.arange(program.n_ops), program.bulk_ops())
    gate = np.where(gated, more.choice(generator.first, program.n_ops), -1).astype(np.int32)
    return replace(program, ops=replace(program.ops, gate=gate))
