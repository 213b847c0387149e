"""Seeded random Programs with loads that merge in the switch (MERGED_LOAD, docs/design/0002), some beside sums that share their places.

A load waits for the response to an equal load, so where responses of loads wait for earlier ops, no load of the Program holds anything.
"""

from dataclasses import replace

import numpy as np

from dysharp.program.builder import To
from dysharp.program.tables import Head, Kind, Program, Tail, Template
from tests.interpreters.random_hardware import chance, random_framings
from tests.interpreters.random_points import change_points
from tests.interpreters.random_sums import Sums


class _Loads(Sums):
    """As `Sums`, with loads instead of some sums."""

    def __init__(self, rng: np.random.Generator, more: np.random.Generator, size: str) -> None:
        super().__init__(rng, more, size)
        self.timeout = int(more.choice((0, 0, 1, 700, 5000)))
        self.responds = chance(more, 0.3)
        self.groups: list[tuple[int, int]] = []  # first op and number of ops
        self.addresses: list[tuple[int, int, int]] = []  # session, home, bytes
        n_classes = len(self.b.classes)
        self.load = self.b.template(
            Template(
                "merged_load", Kind.MERGED_LOAD, "dispatch", cls=int(more.integers(n_classes)), response_cls=int(more.integers(n_classes)),
                framing=self.b.framing(random_framings(more, 1)[0]),
            )
        )  # fmt: skip

    def _sum(self) -> None:
        if chance(self.more, 0.2):
            super()._sum()
        else:
            self._load()

    def _load(self) -> None:
        """Loads of one address by some nodes, perhaps by its home, too, perhaps not as many as it expects."""
        more, before = self.more, self.n_ops
        n = int(more.integers(1, 2 + 2 * self.n_nodes))
        if self.addresses and not self.responds and chance(more, 0.3):
            session, home, size = self.addresses[int(more.integers(len(self.addresses)))]
        else:
            home, size = int(more.integers(self.n_nodes)), int(more.choice((self.row_bytes, 192, 16)))
            session = self.b.loads([home], [max(1, n + int(more.integers(-2, 2)))], self.places, self.timeout)
            self.addresses.append((session, home, size))
        nodes = more.integers(0, self.n_nodes, n)
        first = self.b.ops(
            self.load, nodes, issuer=[int(more.choice(self.senders[i])) for i in nodes.tolist()], bytes=size,
            key=session if self.alike else more.integers(0, 4, n),
            prio=more.integers(0, 2, n), to=To(np.ones(n, int), np.full(n, home)), session=session,
        )  # fmt: skip
        self.n_ops += n
        self.groups.append((first, n))
        for op in range(first, first + n):
            if before and chance(more, 0.5):
                self.b.edges(Tail.OP_DONE, int(more.integers(max(0, before - 12), before)), Head.OP_ISSUE, op)
            if op > first and chance(more, 0.3):
                self.b.edges(Tail.OP_DONE, int(more.integers(first, op)), Head.OP_ISSUE, op)
            if not self.responds:
                self._hold_own(op, int(nodes[op - first]))
        self._follow(first, n)

    def answered_late(self, program: Program) -> Program:
        """Some responses of loads wait for an op before all loads of their address."""
        e, more = program.edges, self.more
        pairs = [(int(more.integers(first)), op) for first, n in self.groups if first for op in range(first, first + n) if chance(more, 0.5)]
        if not self.responds or not pairs:
            return program
        tail, op = np.array(pairs).T
        new = (np.full(len(tail), Tail.OP_DONE), tail, np.full(len(tail), Head.MEMBER_RESPOND), program.members.ptr[op])
        columns = zip(("tail_kind", "tail", "head_kind", "head"), new, strict=True)
        return replace(program, edges=replace(e, **{name: np.append(getattr(e, name), column).astype(np.int32) for name, column in columns}))


def random_loads(seed: int, *, size: str = "tiny", packets: bool = False) -> Program:
    """A legal Program with merged loads that cannot deadlock. Even seeds have edges and holds at other points, too.

    `packets`: one that the packet level runs, without other points.
    """
    rng, more = np.random.default_rng(seed), np.random.default_rng((seed, 17))
    generator = _Loads(rng, more, size)
    generator.alike = packets
    program = generator.built(more)
    if packets:
        return program
    program = generator.answered_late(program)
    return program if seed % 2 else change_points(program, np.random.default_rng((seed, 19)))
