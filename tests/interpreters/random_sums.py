"""Seeded random Programs with sums in the switch (PUSH_REDUCE, docs/design/0002).

Contributions of a sum follow each other in the table and hold nothing, so that no op between them and no hold needs the sum to go on.
"""

from dataclasses import replace

import numpy as np

from dysharp.program.builder import To
from dysharp.program.tables import Alloc, Head, Kind, Program, Tail, Template
from tests.interpreters.random_hardware import chance, random_framings
from tests.interpreters.random_points import change_points
from tests.interpreters.random_programs import Generator


class Sums(Generator):
    """As `Generator`, with some sums among the other ops. `more` draws them."""

    gangs_hold = False
    alike = False  # whether the contributions of a sum have one key and size

    def __init__(self, rng: np.random.Generator, more: np.random.Generator, size: str, like: Program | None = None) -> None:
        super().__init__(rng, size, like)
        self.more, self.places = more, int(more.choice((0, 1, 1, 2, 3)))
        n_classes = len(self.b.classes)
        self.contribution = [
            self.b.template(
                Template(
                    f"push_reduce{i}", Kind.PUSH_REDUCE, "combine", cls=int(more.integers(n_classes)), response_cls=int(more.integers(n_classes)),
                    framing=self.b.framing(random_framings(more, 3)[i]),
                )
            )
            for i in range(2)
        ]  # fmt: skip

    def _other_ops(self, n: int) -> None:
        super()._other_ops(n // 2)
        for _ in range(int(self.more.integers(1, 8))):
            self._sum()
        super()._other_ops(n - n // 2)

    def _sum(self) -> None:
        """A sum of some nodes for a home, which may be one of them, and a reader of it."""
        more, before = self.more, self.n_ops
        home, per_node = int(more.integers(self.n_nodes)), more.integers(0, 3, self.n_nodes)
        nodes = more.permutation(np.repeat(np.arange(self.n_nodes), per_node))
        n, far = len(nodes), int((nodes != home).sum())
        if n == 0:
            return
        size = int(more.choice((self.row_bytes, 192, 16)))
        key, aux = more.integers(0, 4, n), more.choice((0, 0, 16, 1024), n)
        if self.alike:
            key, aux = key[0], aux[0]
        parts = n - far + (far > 0)
        _, row, tile = self.b.regions(home, 1, parts * size, 1, alloc=Alloc(int(more.integers(0, 2))))
        session = self.b.sums([home], [max(far, 1)], self.places)
        issuer = [int(more.choice(self.senders[i])) for i in nodes.tolist()]
        first = self.b.ops(
            self.contribution[int(more.integers(2))], nodes, issuer=issuer, bytes=size, key=key, prio=more.integers(0, 2, n),
            to=To(np.ones(n, int), np.full(n, home), np.ones(n, int), np.full(n, row)), session=session, aux_bytes=aux,
        )  # fmt: skip
        self.n_ops += n
        for op in range(first, first + n):
            if before and chance(more, 0.4):
                self.b.edges(Tail.OP_DONE, int(more.integers(max(0, before - 12), before)), Head.OP_ISSUE, op)
        self._follow(first, n)
        reader = self._compute(home) if chance(more, 0.5) else self._op(Kind.JOIN, home, -1)
        self.b.edges(Tail.TILE_READY, tile, Head.OP_ISSUE, reader)

    def _follow(self, first: int, n: int) -> None:
        """Some transfers of one issuer wait for contributions, the later ones perhaps for the earlier contributions."""
        node = self._node()
        issuer = int(self.more.choice(self.senders[node]))
        for tail in first + self.more.permutation(n)[: int(self.more.integers(0, n + 1))]:
            op = self._op(Kind.SIGNAL, node, issuer, bytes=16, to=self._to([self._target()]))
            self.b.edges(Tail.OP_DONE, int(tail), Head.OP_ISSUE, op)


def _heard_when_delivered(program: Program, rng: np.random.Generator) -> Program:
    """Most edges from the end of a contribution come from its delivery instead. A contribution has one member."""
    e = program.edges
    mine = (e.tail_kind == Tail.OP_DONE) & (program.kinds()[np.minimum(e.tail, program.n_ops - 1)] == Kind.PUSH_REDUCE)
    mine &= rng.random(len(mine)) < 0.7
    tail = np.where(mine, program.members.ptr[np.where(mine, e.tail, 0)], e.tail)
    kind = np.where(mine, Tail.MEMBER_DELIVERED, e.tail_kind)
    return replace(program, edges=replace(e, tail=tail.astype(np.int32), tail_kind=kind.astype(np.int32)))


def random_sums(seed: int, *, size: str = "tiny", packets: bool = False) -> Program:
    """A legal Program with sums in the switch that cannot deadlock. Even seeds have edges and holds at other points, too.

    `packets`: one that the packet level runs, without other points.
    """
    rng, more = np.random.default_rng(seed), np.random.default_rng((seed, 11))
    generator = Sums(rng, more, size)
    generator.alike = packets
    program = generator.built(more)
    if packets:
        return program
    program = _heard_when_delivered(program, more)
    return program if seed % 2 else change_points(program, np.random.default_rng((seed, 13)))
