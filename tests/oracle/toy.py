"""A bench for Programs of a few ops on a machine whose arithmetic can be done by hand."""

from __future__ import annotations

from itertools import chain

from dysharp.isa.framing import Framing
from dysharp.program.builder import ProgramBuilder, To
from dysharp.program.tables import Alloc, Discipline, Hardware, Head, Kind, Program, Tail, Template

# 1 byte takes 1 ps, one link per GPU (so no stripe term), buffers without end.
HARDWARE = Hardware(
    rate=1_000_000,
    lat=1000,
    ack=2000,
    notify=2000,
    responder=500,
    local=100,
    n_vcs=1,
    vc_bytes=0,
    n_links=1,
)
ROW = 1024  # payload of a row: 8 packets of 128 B
WIRE = 1152  # the row with 8 headers
REQUEST = 128  # 8 headers
ACK = 128
TILE_PS = 5000
CLASSES = ("data", "request", "response", "small")


class Toy:
    """A builder with per node: an issuer of transfers, an SM pool with an issuer, and a host thread."""

    def __init__(self, n_nodes: int, *, hardware: Hardware = HARDWARE, slots: int = 1) -> None:
        self.b = b = ProgramBuilder(hardware, n_nodes, CLASSES)
        b.framing(Framing("store"))
        self.pools = [b.pool(n, slots) for n in range(n_nodes)]
        self.hosts = [b.pool(n, 1, "host") for n in range(n_nodes)]
        self.send = [b.issuer(n, Discipline.READY_FIFO, name="send") for n in range(n_nodes)]
        self.sm = [b.issuer(n, Discipline.READY_FIFO, pool=p, name="sm") for n, p in enumerate(self.pools)]
        self.host = [
            b.issuer(n, Discipline.PROGRAM_ORDER, pool=p, name="host") for n, p in enumerate(self.hosts)
        ]

    def rows(
        self, node: int, n: int = 1, *, n_bytes: int = ROW, alloc: Alloc = Alloc.FIRST_TOUCH
    ) -> tuple[int, int]:
        """A region of one tile with `n` rows; returns (first row, tile)."""
        _, row, tile = self.b.regions(node, n, n_bytes, n, alloc=alloc)
        return row, tile

    def op(
        self,
        name: str,
        kind: Kind,
        node: int,
        to: dict[int, list[int]] | None = None,
        *,
        after: tuple[int, ...] = (),
        tiles: tuple[int, ...] = (),
        rows: tuple[int, ...] = (),
        issuer: int | None = None,
        n_bytes: int | None = None,
        ps: int = TILE_PS,
        **columns: int,
    ) -> int:
        """One op that waits for ops `after`, `tiles` and `rows`; `to` maps nodes to the rows they fill."""
        timed = kind in (Kind.COMPUTE, Kind.DELAY)
        template = Template(
            name,
            kind,
            "other",
            cls=3
            if kind is Kind.SIGNAL
            else 1
            if kind in (Kind.GET, Kind.PULL_REDUCE, Kind.MERGED_LOAD)
            else 0,
            response_cls=2,
            tasks=1 if timed else 0,
            duration=self.b.duration([0, ps]) if timed else -1,
        )
        default = {Kind.COMPUTE: self.sm, Kind.DELAY: self.host}.get(kind, self.send)
        members = to or {}
        op = self.b.ops(
            self.b.template(template),
            node,
            issuer=-1 if kind is Kind.JOIN else default[node] if issuer is None else issuer,
            bytes=0 if timed or kind is Kind.JOIN else n_bytes or (16 if kind is Kind.SIGNAL else ROW),
            to=None
            if to is None
            else To(
                len(members),
                list(members),
                [len(r) for r in members.values()],
                list(chain.from_iterable(members.values())),
            ),
            **columns,
        )
        for tail_kind, tails in ((Tail.OP_DONE, after), (Tail.TILE_READY, tiles), (Tail.ROW_COMPLETE, rows)):
            for tail in tails:
                self.b.edges(tail_kind, tail, Head.OP_ISSUE, op)
        return op

    def notify(self, tile: int, after: int, rows: dict[int, int]) -> None:
        """When op `after` is done, `tile` tells the owners of its rows: `rows` maps row to op."""
        self.b.edges(Tail.OP_DONE, after, Head.TILE_NOTIFY, tile)
        for row, op in rows.items():
            self.b.notify([row], op)

    def build(self) -> Program:
        return self.b.build()
