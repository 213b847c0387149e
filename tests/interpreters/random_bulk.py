"""Seeded random Programs with bulk ops (docs/design/0001, Bulk) among rows, pulls, tasks and each other."""

from dataclasses import replace

import numpy as np

from dysharp.isa.framing import Framing
from dysharp.program.builder import ProgramBuilder, To
from dysharp.program.tables import Alloc, Discipline, Hardware, Head, Kind, Net, Program, Tail, Template
from tests.interpreters.random_hardware import chance, random_framings
from tests.interpreters.random_points import change_points
from tests.interpreters.random_programs import Generator

TRAINS = (2, 3, 5, 17, 40, 200)  # most trains of a bulk op


class Bulks(Generator):
    """As `Generator`, with some bulk ops among the other ops. `more` draws them."""

    gangs_hold = False
    train_bytes = 0  # of the machine; 0: a row

    def __init__(self, rng: np.random.Generator, more: np.random.Generator, size: str, like: Program | None = None) -> None:
        super().__init__(rng, size, like)
        self.more = more
        if like is None:
            train = self.train_bytes or self.row_bytes
            self.b.hardware = replace(self.b.hardware, train_bytes=train, vc_bytes=self.b.hardware.vc_bytes * int(more.choice((1, 1, 8))))
            self.b.nets = tuple(replace(net, train_bytes=train) for net in self.b.nets)
        framings = [self.b.framing(f) for f in random_framings(more, 2)]
        nets = [net for net in range(len(self.b.nets) + 1) if not net or not self.b.nets[net - 1].step]
        self.bulk = [
            self.b.template(
                Template(
                    f"bulk{i}", Kind.PUT, "combine", cls=int(more.integers(len(self.b.classes))), framing=framings[i], net=int(more.choice(nets))
                )
            )
            for i in range(2)
        ]  # fmt: skip

    def _other_ops(self, n: int) -> None:
        super()._other_ops(n // 2)
        for _ in range(int(self.more.integers(1, 5))):
            self._bulk()
        super()._other_ops(n - n // 2)

    def _bulk(self) -> None:
        """A bulk op, which often fills a row that a task waits for."""
        more, before = self.more, self.n_ops
        node, to = int(more.integers(self.n_nodes)), int(more.integers(self.n_nodes))
        if self.hot_node >= 0 and chance(more, 0.5):
            to = self.hot_node
        which = int(more.integers(2))
        net = self.b._templates[self.bulk[which]].net
        train = self.b.nets[net - 1].train_bytes if net else self.b.hardware.train_bytes
        size = int(more.integers(train // 2, train * int(more.choice(TRAINS)) + 1))
        rows = []
        if chance(more, 0.6):
            _, row, tile = self.b.regions(to, 1, size, 1, alloc=Alloc(int(more.integers(0, 2))))
            rows = [row]
        op = self.b.ops(
            self.bulk[which],
            node,
            issuer=int(more.choice(self.senders[node])),
            bytes=size,
            key=int(more.integers(0, 4)),
            prio=int(more.integers(0, 2)),
            to=To(1, [to], [len(rows)], rows),
        )
        self.n_ops += 1
        for _ in range(int(more.integers(0, 3)) if before else 0):
            self.b.edges(Tail.OP_DONE, int(more.integers(0, before)), Head.OP_ISSUE, op)
        if rows:
            self.b.edges(Tail.TILE_READY, tile, Head.OP_ISSUE, self._compute(to))


def random_bulk(seed: int, *, size: str = "tiny") -> Program:
    """A legal Program with bulk ops that cannot deadlock. Every third one has other points, too. Equal arguments give equal Programs."""
    more = np.random.default_rng((seed, 31))
    generator = Bulks(np.random.default_rng((seed, 37)), more, size)
    program = generator.built(more)
    if chance(more, 0.5):  # nothing follows a train, so a piece may be as long as its op
        none = np.zeros_like(program.wires.ack_up)
        program = replace(program, wires=replace(program.wires, ack_up=none, ack_down=none), hardware=replace(program.hardware, memory_rate=0))
    if seed % 3:
        return program
    parts = more.choice(("issued", "delivered", "rows", "respond", "pace", "early"), 2, replace=False)
    return change_points(program, more, tuple(str(part) for part in parts))


def crowded_bulk(seed: int) -> Program:
    """Two bulk ops of a node, one of them to a slow node: it runs out of pieces, and interrupts the other one when it has a piece again."""
    rng = np.random.default_rng((seed, 47))
    net = Net("net", 1_000_000, 3000, 6000, train_bytes=1000, rates=(1_000_000, int(rng.integers(90_000, 200_000)), 1_000_000))
    b = ProgramBuilder(Hardware(1_000_000, 3000, 6000, 0, 0, 0, n_vcs=1, vc_bytes=0, n_links=1), 3, ("slow", "fast"), nets=(net,))
    framing = b.framing(Framing("store", ack=0, source_ack=0))
    for cls, name in enumerate(b.classes):
        bulk = b.template(Template(name, Kind.PUT, "combine", cls=cls, framing=framing, net=1))
        b.ops(bulk, 0, issuer=b.issuer(0, Discipline.READY_FIFO), bytes=1000 * int(rng.integers(500, 700)), to=To(1, [1 + cls]))
    return b.build()
