"""Seeded random Programs for the engine, with many collisions and without deadlock.

Every Program ends, for two reasons. Every edge goes from a lower op id to a higher op id, and the ops that fill a row
precede the readers of its tile. A semaphore that an op holds beyond its own end is released by an op that waits for
that op only, on an issuer for such ops.
"""

from dataclasses import replace

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.program.builder import WIRED, ProgramBuilder, To
from dysharp.program.tables import Alloc, Discipline, Head, HubTable, Kind, Program, Tail, Template
from tests.interpreters.coverage import coverage
from tests.interpreters.random_hardware import chance, random_framings, random_hardware, random_nets

__all__ = ["coverage", "random_program"]

DISCIPLINES = (Discipline.PROGRAM_ORDER, Discipline.READY_FIFO, Discipline.SMALLEST_KEY)
PUSHES = (Kind.PUT, Kind.MULTICAST, Kind.SIGNAL)
# (smallest, largest) number of tokens per round, rounds, and other ops before, between and after the tiles of a round
SIZES = {"tiny": ((4, 14), (1, 3), (8, 16)), "small": ((20, 60), (2, 4), (20, 50))}


class Generator:
    """Builds one Program. All random numbers come from `rng`."""

    gangs_hold = True

    def __init__(self, rng: np.random.Generator, size: str, like: Program | None = None) -> None:
        """`like`: a Program on whose machine this one runs, too (`random_merges`)."""
        self.rng, self.like = rng, like
        self.tokens, self.rounds, self.others = SIZES[size]
        self.n_nodes = int(rng.choice((1, 2, 2, 3, 3, 4)))
        self.row_bytes = int(rng.choice((192, 384, 768, 1536, 3000)))
        self.duration = int(rng.choice((1, 500, 1728, 10_000)))
        hardware = random_hardware(rng, self.row_bytes)
        if like is not None:
            self.n_nodes, hardware = like.n_nodes, like.hardware
        self.b = ProgramBuilder(hardware, self.n_nodes, tuple(f"class{i}" for i in range(self._int(1, 4))))
        self.n_ops = 0
        self.table: list[int] = []
        self.allocates = False
        # Programs with few edges and holds fill the links; Programs with many exercise the waits.
        self.hold_chance = float(rng.choice((0, 0.1, 0.3)))
        self.edge_chance = float(rng.choice((0.1, 0.5, 1)))
        self.hot_node = self._node() if chance(rng, 0.4) else -1
        self._make_templates()
        self._make_issuers()
        self._make_semaphores()

    def built(self, more: np.random.Generator) -> Program:
        """The Program after one round to the most of its size; `more` draws their number."""
        for _ in range(int(more.integers(1, 1 + self.rounds[1]))):
            self.round()
        return self.b.build()

    def _int(self, low: int, high: int) -> int:
        """A uniform integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def _node(self) -> int:
        return self._int(0, self.n_nodes - 1)

    def _target(self) -> int:
        """A destination node. Half of the draws give the hot node."""
        return self.hot_node if self.hot_node >= 0 and chance(self.rng, 0.5) else self._node()

    # ---- tables that ops refer to -------------------------------------------------------------------------

    def _make_templates(self) -> None:
        framings = [self.b.framing(f) for f in random_framings(self.rng, 3)]
        n_classes = len(self.b.classes)
        times = [self.duration, 2 * self.duration, self.duration + int(self.rng.choice((0, 1)))]
        memory = self.rng.spawn(1)[0]  # a separate stream, so that the other draws of a seed do not depend on it
        durations = [self.b.duration([0, *times], int(memory.choice((0, self.row_bytes, 5 * self.row_bytes)))) for _ in range(2)]
        tables = [self._table(self.rng.spawn(1)[0]) for _ in range(2)]
        nets = self.rng.spawn(1)[0]
        self.b.nets = random_nets(nets, self.b.hardware, self.n_nodes) if self.like is None else self.like.nets
        self.templates: dict[Kind, list[int]] = {}
        for kind in list(Kind)[: Kind.PULL_REDUCE + 1]:
            net = nets.integers(0, len(self.b.nets) + 1, 2) if kind in WIRED else (0, 0)
            self.templates[kind] = [
                self.b.template(
                    Template(
                        name=f"{kind.name.lower()}{i}",
                        kind=kind,
                        operator=str(self.rng.choice(("dispatch", "gemm1", "gemm2", "combine", "other"))),
                        cls=self._int(0, n_classes - 1),
                        response_cls=self._int(0, n_classes - 1),
                        framing=int(self.rng.choice(framings)),
                        tasks=self._int(1, 6) if kind is Kind.COMPUTE else 1,
                        duration=int(self.rng.choice(durations)) if kind in (Kind.COMPUTE, Kind.DELAY) else -1,
                        table=tables[i] if kind in self._askers() and not net[i] else -1,
                        net=int(net[i]),
                    )
                )
                for i in range(2)
            ]

    def _table(self, rng: np.random.Generator) -> int:
        """The hub table that templates ask, the same one for all; -1 = none. A separate stream: the other draws stay."""
        if chance(rng, 0.4):
            return -1
        if not self.table:
            entries, misses = int(rng.choice((0, 1, 2, 5))), int(rng.choice((0, 1, 2)))
            table = HubTable("places", entries, misses, int(rng.choice((0, self.duration, 3 * self.duration))))
            if chance(rng, 0.5) and self.like is None:  # rows take their places in it; guests have the row table of their host
                banks = int(rng.choice((1, 1, 2)))
                table = replace(table, entries=min(entries, 2) * banks, allocates=True, banks=banks)
            if self.like is not None and self.like.tables:
                table = self.like.tables[0]
            self.allocates = table.allocates
            self.table.append(self.b.table(table))
        return self.table[0]

    def _askers(self) -> tuple[Kind, ...]:
        """Kinds of ops that may ask the hub table."""
        stores = (Kind.PUT, Kind.MULTICAST)
        return stores if self.allocates else (*stores, Kind.GET, Kind.PULL_REDUCE)

    def _make_issuers(self) -> None:
        """Per node: issuers of transfers (some share an SM pool), a host thread, issuers of releases."""
        b = self.b
        self.senders: list[list[int]] = []
        self.computers: list[list[int]] = []
        self.hosts: list[int] = []
        self.releasers: list[tuple[int, int]] = []
        for node in range(self.n_nodes):
            slots = self._int(1, 5)
            if self.like is not None and node % 2 == 0:
                slots = int(self.like.pools.slots[2 * node])  # a pool of both; others stay apart
            pool, host = b.pool(node, slots), b.pool(node, 1, "host")
            self.senders.append([b.issuer(node, self._sender_discipline()) for _ in range(self._int(1, 3))])
            self.computers.append([b.issuer(node, self._discipline(), pool=pool) for _ in range(self._int(1, 2))])
            self.hosts.append(b.issuer(node, self._discipline(), pool=host))
            never_ordered = DISCIPLINES[self._int(1, 2)]
            self.releasers.append((b.issuer(node, never_ordered), b.issuer(node, never_ordered, pool=pool)))

    def _discipline(self) -> Discipline:
        return DISCIPLINES[self._int(0, 2)]

    def _sender_discipline(self) -> Discipline:
        """As `_discipline`, or receivers in turn. A separate stream draws it, so that the other draws stay."""
        drawn = self._discipline()
        return Discipline.ROUND_ROBIN if chance(self.rng.spawn(1)[0], 0.3) else drawn

    def _make_semaphores(self) -> None:
        """Per node: semaphores that their holders release, and one window that another op releases."""
        self.semaphores = [[(self.b.semaphore(n, c), c) for c in self.rng.choice((1, 1, 2, 4), 2).tolist()] for n in range(self.n_nodes)]
        capacities = self.rng.choice((1, 2, 3), self.n_nodes).tolist()
        self.windows = [(self.b.semaphore(n, c, "tokens"), c) for n, c in enumerate(capacities)]

    # ---- single ops --------------------------------------------------------------------------------------

    def _op(self, kind: Kind, node: int, issuer: int, *, bytes: int = 0, to: To | None = None) -> int:
        self.n_ops += 1
        return self.b.ops(
            self.templates[kind][self._int(0, 1)],
            node,
            issuer=issuer,
            bytes=bytes,
            key=self._int(0, 3),
            prio=self._int(0, 1),
            rows=self._int(1, 3),
            to=to,
            aux_bytes=int(self.rng.choice((0, 0, 16))) if kind in PUSHES else 0,
        )

    def _to(self, nodes: list[int], rows: list[list[int]] | None = None) -> To:
        rows = rows or [[] for _ in nodes]
        ext = self.rng.choice((0, 0, 16, 32), len(nodes)) if chance(self.rng, 0.3) else None
        return To(len(nodes), nodes, [len(r) for r in rows], [row for r in rows for row in r], ext)

    def _hold_own(self, op: int, node: int, kept: bool = True) -> None:
        """Hold up to two semaphores from issue to done, sometimes one semaphore in two holds."""
        for sem, capacity in self.semaphores[node]:
            if not chance(self.rng, self.hold_chance):
                continue
            amount = self._int(1, capacity)
            twice = amount > 1 and chance(self.rng, 0.5)
            for part in (1, amount - 1) if twice else (amount,):
                if kept:
                    self.b.hold(sem, op, amount=part)

    def _hold_window(self, op: int, node: int) -> None:
        """Hold the node's window from this op's issue to the end of an op that waits for this op only."""
        sem, capacity = self.windows[node]
        amount = self._int(1, capacity)
        release = self._release_op(node)
        self.b.edges(Tail.OP_DONE, op, Head.OP_ISSUE, release)
        self.b.hold(sem, op, release, amount=amount)

    def _release_op(self, near: int) -> int:
        node = near if chance(self.rng, 0.5) else self._node()
        kind = Kind(int(self.rng.choice((Kind.JOIN, Kind.SIGNAL, Kind.GET, Kind.COMPUTE))))
        if kind is Kind.JOIN:
            return self._op(kind, node, -1)
        if kind is Kind.COMPUTE:
            return self._op(kind, node, self.releasers[node][1])
        return self._op(kind, node, self.releasers[node][0], bytes=16, to=self._to([self._node()]))

    def _edges_from_before(self, op: int, p: float) -> None:
        """Add edges from earlier ops, more often from recent ops, sometimes twice from one op."""
        p *= self.edge_chance
        while op > 0 and chance(self.rng, p):
            tail = self._int(max(0, op - 12), op - 1) if chance(self.rng, 0.7) else self._int(0, op - 1)
            for _ in range(2 if chance(self.rng, 0.1) else 1):
                self.b.edges(Tail.OP_DONE, tail, Head.OP_ISSUE, op)
            p *= 0.6

    def _compute(self, node: int) -> int:
        issuers = self.computers[node]
        op = self._op(Kind.COMPUTE, node, issuers[self._int(0, len(issuers) - 1)])
        if chance(self.rng, 0.2):
            # A gang that has some of its slots may lose its turn to an op that wants its semaphore. Such Programs are few
            # and old seeds end, so only Programs of several networks or with sums, which are younger, have no such holds.
            self._hold_own(op, node, kept=self.gangs_hold and not self.b.nets)
        return op

    # ---- a round: tokens go out, tiles compute, results come back ----------------------------------------

    def round(self) -> None:
        tokens = self._int(*self.tokens)
        parts = self._int(1, 3)
        # A coin per token and region decides the destinations, so some regions and some tokens stay empty.
        n_regions = self._int(1, 2 * self.n_nodes)
        region_node = [self._target() for _ in range(n_regions)]
        wants = self.rng.random((tokens, n_regions)) < self.rng.choice((0.3, 0.7, 1.0))
        rows, tile_ranges, prefix = self._make_regions(region_node, wants)
        for token in self.rng.permutation(tokens).tolist():
            self._send_token(token, parts, region_node, rows)
        self._other_ops(self._int(*self.others))
        notifiers = self._compute_tiles(region_node, tile_ranges, prefix)
        self._other_ops(self._int(*self.others))
        self._return_tokens(tokens, region_node, rows, notifiers)
        self._other_ops(self._int(*self.others))

    def _make_regions(
        self, region_node: list[int], wants: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    ) -> tuple[list[dict[int, int]], list[range], list[bool]]:
        """Add all regions with rows by token, tiles and allocation."""
        rows: list[dict[int, int]] = []
        tiles: list[range] = []
        prefix: list[bool] = []
        for r, node in enumerate(region_node):
            who = np.flatnonzero(wants[:, r]).tolist()
            alloc = Alloc.PREFIX if chance(self.rng, 0.4) else Alloc.FIRST_TOUCH
            tile_rows = self._int(1, 5)
            _, row, tile = self.b.regions(node, len(who), self.row_bytes, tile_rows, alloc=alloc, key=who)
            rows.append({token: row + i for i, token in enumerate(who)})
            tiles.append(range(tile, tile - (-len(who) // tile_rows)))
            prefix.append(alloc is Alloc.PREFIX)
        return rows, tiles, prefix

    def _send_token(self, token: int, parts: int, region_node: list[int], rows: list[dict[int, int]]) -> None:
        """Fill all rows of a token: `parts` trains of equal size, each a multicast or a PUT per node."""
        filled: dict[int, list[int]] = {}
        for node, by_token in zip(region_node, rows, strict=True):
            if token in by_token:
                filled.setdefault(node, []).append(by_token[token])
        source = self._node()
        for part in range(parts if filled else 1):
            size = self.row_bytes // parts + (self.row_bytes % parts if part == 0 else 0)
            groups = [list(filled)] if chance(self.rng, 0.6) else [[node] for node in filled]
            for nodes in groups:
                kind = Kind.MULTICAST if len(nodes) != 1 or chance(self.rng, 0.3) else Kind.PUT
                if parts == 1 and nodes and chance(self.rng, 0.3):
                    for op in self._send_trains(kind, source, nodes, [filled[n] for n in nodes]):
                        self._edges_from_before(op, 0.2)
                    continue
                op = self._send(kind, source, size, self._to(nodes, [filled[n] for n in nodes]))
                self._edges_from_before(op, 0.2)

    def _send_trains(self, kind: Kind, node: int, nodes: list[int], rows: list[list[int]]) -> list[int]:
        """A row in two trains, which are consecutive ops."""
        self.b.row_trains = 2
        first = self._int(1, self.row_bytes - 1)
        filled = [row for of_node in rows for row in of_node]
        to = To([len(nodes)] * 2, nodes * 2, [len(of_node) for of_node in rows] * 2, filled * 2)
        senders = self.senders[node]
        self.n_ops += 2
        op = self.b.ops(
            self.templates[kind][self._int(0, 1)],
            [node, node],
            issuer=senders[self._int(0, len(senders) - 1)],
            bytes=[first, self.row_bytes - first],
            key=self._int(0, 3),
            to=to,
            offset=[0, first],
        )
        return [op, op + 1]

    def _send(self, kind: Kind, node: int, size: int, to: To) -> int:
        senders = self.senders[node]
        op = self._op(kind, node, senders[self._int(0, len(senders) - 1)], bytes=size, to=to)
        self._hold_own(op, node)
        if chance(self.rng, self.hold_chance):
            self._hold_window(op, node)
        return op

    def _compute_tiles(self, region_node: list[int], tiles: list[range], prefix: list[bool]) -> dict[int, list[int]]:
        """Add readers of every tile. Returns per tile the ops before its notification; no op = the tile itself."""
        notifiers: dict[int, list[int]] = {}
        for r, node in enumerate(region_node):
            for tile in tiles[r]:
                ops: list[int] = []
                for _ in range(self._int(0, 2)):
                    op = self._compute(node) if chance(self.rng, 0.8) else self._op(Kind.JOIN, node, -1)
                    if ops and chance(self.rng, 0.5):
                        self.b.edges(Tail.OP_DONE, ops[-1], Head.OP_ISSUE, op)
                    # Only a row with a fixed slot can be notified before its tile is ready.
                    if not prefix[r] or chance(self.rng, 0.8):
                        self.b.edges(Tail.TILE_READY, tile, Head.OP_ISSUE, op)
                    self._edges_from_before(op, 0.1)
                    ops.append(op)
                notifiers[tile] = ops
        return notifiers

    def _return_tokens(self, tokens: int, region_node: list[int], rows: list[dict[int, int]], notifiers: dict[int, list[int]]) -> None:
        """One op per token waits for the notifications of the token's rows: a pull of their sum, or another op."""
        told = [r for r in range(len(rows)) if chance(self.rng, 0.8)]
        for token in range(tokens):
            mine = [r for r in told if token in rows[r]]
            nodes = sorted({region_node[r] for r in mine})
            op = self._returning_op(nodes, [[rows[r][token] for r in mine if region_node[r] == n] for n in nodes])
            self._edges_from_before(op, 0.1)
            for r in mine:
                if chance(self.rng, 0.9):
                    self.b.notify([rows[r][token]], op)
        for tile, ops in notifiers.items():
            for op in ops:
                self.b.edges(Tail.OP_DONE, op, Head.TILE_NOTIFY, tile)
            if not ops or chance(self.rng, 0.2):
                self.b.edges(Tail.TILE_READY, tile, Head.TILE_NOTIFY, tile)

    def _returning_op(self, nodes: list[int], rows: list[list[int]]) -> int:
        kind = Kind(int(self.rng.choice((Kind.PULL_REDUCE, Kind.PULL_REDUCE, Kind.JOIN, Kind.PUT, Kind.COMPUTE))))
        home = self._node()
        if kind is Kind.JOIN:
            return self._op(kind, home, -1)
        if kind is Kind.COMPUTE:
            return self._compute(home)
        if kind is Kind.PUT:
            return self._send(kind, home, self.row_bytes, self._to([self._target()]))
        return self._send(kind, home, self.row_bytes, self._to(nodes, rows))

    def _other_ops(self, n: int) -> None:
        """Add ops of any kind with few dependencies, such as sequences of JOINs and ops without members."""
        for _ in range(n):
            kind = Kind(self._int(0, Kind.PULL_REDUCE))
            node = self._node()
            if kind is Kind.JOIN:
                op = self._op(kind, node, -1)
            elif kind is Kind.DELAY:
                op = self._op(kind, node, self.hosts[node])
            elif kind is Kind.COMPUTE:
                op = self._compute(node)
            else:
                op = self._send(kind, node, self._size(kind), self._to(self._destinations(kind)))
            self._edges_from_before(op, 0.5)

    def _size(self, kind: Kind) -> int:
        return 16 if kind is Kind.SIGNAL else int(self.rng.choice((self.row_bytes, self.row_bytes // 2, 16)))

    def _destinations(self, kind: Kind) -> list[int]:
        if kind in (Kind.PUT, Kind.SIGNAL, Kind.GET):
            return [self._target()]
        n = self._int(0 if chance(self.rng, 0.2) else 1, self.n_nodes)
        return [int(i) for i in self.rng.permutation(self.n_nodes)[:n]]


def random_program(seed: int, *, size: str = "tiny") -> Program:
    """A legal Program for the engine that cannot deadlock. Equal (seed, size) give equal Programs.

    `size`: "tiny" (about 50 to 400 ops on 1 to 4 nodes) or "small" (several times as many ops). Raises ConfigError for
    another size.
    """
    if size not in SIZES:
        raise ConfigError(f"random_program: found size {size!r}, expected one of {', '.join(SIZES)}")
    generator = Generator(np.random.default_rng(seed), size)
    for _ in range(generator._int(*generator.rounds)):
        generator.round()
    return generator.b.build()
