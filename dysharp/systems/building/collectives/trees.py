"""`Trees`: chunks that go up trees of GPUs as sums and down as copies, each as soon as it has arrived and the time of a hop has passed.

Inside an NVLink domain NCCL's tree is a chain. Between domains it is binary, with a tree per rail. NCCL's broadcast goes down its rings.
"""

import numpy as np

from dysharp.base import PS_PER_US
from dysharp.program import BETWEEN_NET, I32, I64, NIC, Discipline, Kind, Tail, frozen
from dysharp.specs import Cluster
from dysharp.systems.building.collectives.steps import RESULT, SUM, VECTOR, Steps, reaching
from dysharp.workload import Collective

PIECES = 8
"""Least number of chunks of a tree, so that short vectors overlap on the way too."""


@frozen
class Way:
    """Costs of trees. Times in us; `net_us`: a hop between domains. `part`, `net_part`: of the links' rate."""

    start_us: float
    hop_us: float
    net_us: float
    part: float
    net_part: float


def rail_trees(n_gpus: int, domain_gpus: int) -> I64:
    """`[trees, n_gpus]` parent of every GPU in every tree, -1 = the root. One tree per rail over several domains, otherwise one."""
    trees = domain_gpus if n_gpus > domain_gpus else 1
    gpu, tree = np.arange(n_gpus)[None], np.arange(trees)[:, None]
    domain, place = gpu // domain_gpus, (gpu - tree) % domain_gpus  # places behind the GPU that has the rail
    head = domain * domain_gpus + (place - 1 + tree) % domain_gpus
    above = np.where(domain > 0, (domain - 1) // 2 * domain_gpus + tree, -1)
    return np.where(place > 0, head, above)


class Trees(Steps):
    """Trees under construction. `parents`: `[trees, gpus]`, -1 = the root."""

    def __init__(self, work: Collective, cluster: Cluster, parents: I64, way: Way) -> None:
        super().__init__(work, cluster, len(parents) * PIECES, whole=True)
        self.parents = parents
        self.tree: I64 = self.chunks.place % len(parents)
        self.framings = reaching("tree", way.part), reaching("tree", way.net_part)
        self.hops = round(way.hop_us * PS_PER_US) - self.flight_ps, 0
        if self.b.nets:
            self.hops = self.hops[0], round(way.net_us * PS_PER_US) - 2 * self.b.nets[BETWEEN_NET - 1].lat
        late = max(0, self.flight_ps - max(1, self.hops[0])) if self.n > 1 else 0  # as in `rings`
        self.begun = self.start("launch", round(way.start_us * PS_PER_US) - late)
        many = max(1, len(self.tree) * self.n)
        self.waits = self.issuers("hop", Discipline.READY_FIFO, slots=many)
        self.senders = self.ready("tree")
        self.order = [self._by_depth(tree) for tree in range(len(parents))]

    def _by_depth(self, tree: int) -> list[int]:
        """GPUs of a tree, the root first."""
        depth = np.zeros(self.n, np.int64)
        up = self.parents[tree].copy()
        while (up >= 0).any():
            depth += up >= 0
            up = np.where(up >= 0, self.parents[tree][up], -1)
        order: list[int] = np.argsort(depth, kind="stable").tolist()
        return order

    def reduce(self) -> dict[tuple[int, int], list[I32]]:
        """Sums to the roots. Returns what the root of each tree waits for: (tree, root) -> gates by chunk of the tree."""
        gates: dict[tuple[int, int], list[I32]] = {}
        for tree, order in enumerate(self.order):
            inner = {int(parent) for parent in self.parents[tree]}
            for gpu in order[:0:-1]:
                up = int(self.parents[tree, gpu])
                src, dst = SUM if gpu in inner else VECTOR, RESULT if self.parents[tree, up] < 0 else SUM
                gate = self.pass_on("reduce", "add", tree, gpu, up, src, dst, gates.get((tree, gpu), []))
                gates.setdefault((tree, up), []).append(gate)
        return gates

    def gather(self, gates: dict[tuple[int, int], list[I32]], src: str) -> None:
        """Copies from the roots, which wait for `gates`. `src`: the roots' buffer."""
        for tree, order in enumerate(self.order):
            for gpu in order[1:]:
                up = int(self.parents[tree, gpu])
                is_root = self.parents[tree, up] < 0
                gates[tree, gpu] = [self.pass_on("gather", "copy", tree, up, gpu, src if is_root else RESULT, RESULT, gates.get((tree, up), []))]

    def pass_on(self, operator: str, fn: str, tree: int, node: int, to: int, src: str, dst: str, after: list[I32]) -> I32:
        """The chunks of a tree from `node` to `to`, each behind `after`. Returns the DELAYs behind their arrivals."""
        chunk = np.flatnonzero(self.tree == tree)
        far = node // self.cluster.domain_gpus != to // self.cluster.domain_gpus
        rows, tiles = self.arrivals("arrived", np.full(len(chunk), to), self.chunks.size[chunk])
        template = self.template(operator, Kind.PUT, operator, fn, self.framings[far], src=src, dst=dst, net=BETWEEN_NET * far)
        op = self.move(template, np.full(len(chunk), node, np.int32), chunk, np.full(len(chunk), self.senders[node]), to, row=rows)
        for tails in after or [self.begun[node]]:
            self.wait(op, tails)
        gate = self.delay(f"hop{'.far' * far}", self.hops[far], np.full(len(chunk), self.waits[to]), np.full(len(chunk), to, np.int32))
        self.wait(gate, tiles, Tail.TILE_READY)
        self.declare(operator, int(self.chunks.size[chunk].sum()), *(NIC.sides if far else ("up", "down")))
        return gate

    def alone(self) -> None:
        """On one GPU the vector is the result."""
        if self.n == 1:
            chunk = np.arange(len(self.chunks.size))
            self.keep(VECTOR, RESULT, chunk, np.zeros(len(chunk), np.int32), np.repeat(self.begun, len(chunk)))

    def keep_root(self) -> None:
        """The root's own result."""
        for tree, order in enumerate(self.order):
            chunk = np.flatnonzero(self.tree == tree)
            root = np.full(len(chunk), order[0], np.int32)
            self.keep(VECTOR, RESULT, chunk, root, self.begun[root])
