"""Steps of communication software in real forms: starts, copies on SMs, paced stores, flags, barriers.

A cost is a DELAY on a host or an SM. Bytes move in the transfers of rows and control words. A flag exchange on a real
machine takes `Software.sync_ps` (store, flight, poll, fence). The Program simulates the flight as a transfer; a DELAY
charges the remaining time.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import PS_PER_US, ConfigError
from dysharp.costs import collectives as times
from dysharp.program import I32, I64, OTHER, Alloc, Discipline, Kind
from dysharp.systems.building.base import CONTROL, LayerBase
from dysharp.systems.building.batch import Batch, Sends, ids

SomeBatch = TypeVar("SomeBatch", bound=Batch)
SomeSends = TypeVar("SomeSends", bound=Sends)
WORD_BYTES = 16  # a flag or a count with its address: one flit


class SoftwareBase(LayerBase):
    """The steps of software around the transfers of a pass. Steps with a cost (`costs`) need an hw-* cluster.

    `name`, `options`: of the system that plans.
    """

    name = ""
    options: Any = None

    @property
    def visible_ps(self) -> int:
        """Time until the source has the acknowledgement of the receiver, in measured times that contain it."""
        return 2 * self.flight_ps

    def alltoall_ps(self, sent_bytes: int, own_bytes: int) -> int:
        """`Software.alltoall_ps`, and a step of the network where there are several NVLink domains."""
        step = round(times.NET_STEPS_US[times.PROTOCOLS.index(times.SIMPLE)] * PS_PER_US) if self.cluster.domains > 1 else 0
        return step + self.costs.alltoall_ps(sent_bytes, own_bytes)

    # ---- steps of one GPU --------------------------------------------------------------------------------------------

    def delay(self, name: str, cost_ps: int | Sequence[int] | I64, *, after: I32 | None = None, after_all: I32 | None = None) -> I32:
        """`[gpus]` one DELAY per GPU, of `cost_ps` or `cost_ps[gpu]`, which waits for the op `after[gpu]`, or for `after_all` of all GPUs."""
        gpus = self.gpus
        costs = np.maximum(1, np.broadcast_to(np.asarray(cost_ps, np.int64), (self.n_gpus,)))
        delays = self.delays(name, np.append(0, costs), gpus, self.issuers(name, slots=1), rows=gpus + 1)
        self.wait_each(delays, after)
        self.wait_all(delays, after_all)
        return delays

    def reorder(self, name: str, tokens: ArrayLike, rows: I64, row_bytes: int = 0, *, after: I32 | None = None) -> I32:
        """`[gpus]` DELAYs of a kernel that scatters `tokens[gpu]` rows to `rows[gpu]` places, or gathers them. `row_bytes`: 0 = the model's."""
        hidden, counts = self.model.hidden, zip(np.broadcast_to(tokens, rows.shape).tolist(), rows.tolist(), strict=True)
        element = (row_bytes or self.model.row_bytes) / hidden
        return self.delay(name, [self.costs.reorder_ps(n, row, hidden, element) for n, row in counts], after=after)

    def sms(self, name: str, n: int, discipline: Discipline = Discipline.READY_FIFO, side_by_side: int = 1) -> I32:
        """`[gpus, n]` issuers. Each has its own SM, which works on `side_by_side` rows at a time."""
        return self.issuers(name, discipline, each=n, slots=side_by_side).reshape(-1, n)

    def copies(
        self,
        operator: str,
        durations: list[int],
        node: I32,
        issuer: I32,
        rows: I64 | int = 1,
        *,
        prio: I64 | int = 0,
        name: str = "sm",
        **after: I32 | None,
    ) -> Batch:
        """Add a DELAY of `durations[rows]` ps per row or copy, on the SM of `issuer[i]`. `after`: see `held`.

        The template is called "OPERATOR.NAME".
        """
        ops = self.delays(f"{operator}.{name}", durations, node, issuer, operator, rows=rows, prio=prio)
        return self.held(Batch(op=ops, node=node), **after)

    def held(self, batch: SomeBatch, *, after: I32 | None = None, begun: I32 | None = None) -> SomeBatch:
        """`batch`, whose op i waits for the op `after[i]` and for the op `begun[gpu]` of its GPU."""
        self.wait_each(batch.op, after)
        self.wait_each(batch.op, None if begun is None else begun[batch.node])
        return batch

    def tokens_on_sms(self, n_sms: int, cost_ps: int) -> Batch:
        """Add a DELAY of `cost_ps` per token of `layer.p.sent`. Token i of a GPU runs on SM i modulo `n_sms`."""
        used = min(n_sms, self.tokens)
        issuers = self.sms("send", used, Discipline.PROGRAM_ORDER)
        issuer = issuers[self.p.sent_source, self.p.sent % self.tokens % used]
        return self.copies("dispatch", [0, cost_ps], self.p.sent_source, issuer, name="token")

    def paced(
        self,
        operator: str,
        sends: SomeSends,
        cost_ps: int,
        discipline: Discipline = Discipline.READY_FIFO,
        *,
        pools: list[int] | None = None,
        own: bool = False,
        **after: I32 | None,
    ) -> SomeSends:
        """Add a DELAY of `cost_ps` before each op of `sends` that leaves its GPU by NVLink, one DELAY at a time per GPU.

        `pools`: stores with the same pools are paced together. `own`: copies that stay on the GPU are paced, too. `after`: see `held`.
        Returns `sends` with the DELAY in place of each paced op, so that later edges hold back the DELAY.
        """
        far = np.flatnonzero(((sends.node != sends.to) | own) & ~self.ways.leaves(sends.node, sends.to))
        issuer = self.per_gpu(discipline, "stores", self.pools(1, "stores") if pools is None else pools)[sends.node[far]]
        heads = sends.op.copy()
        heads[far] = self.delays(f"{operator}.stores", [0, cost_ps], sends.node[far], issuer, operator)
        self.wait_each(sends.op[far], heads[far])
        return self.held(dataclasses.replace(sends, op=heads), **after)

    def all_to_all(self, name: str, operator: str, batches: Sequence[Sends], n_bytes: int, *after: I32 | None) -> I32:
        """NCCL's all-to-all of rows of `n_bytes` behind the ops `after` of all GPUs: start, own chunk, last chunks, rows paced as stores.

        Returns `[gpus]` its start.
        """
        node = np.concatenate([batch.node for batch in batches])
        own = node[node == np.concatenate([batch.to for batch in batches])]
        rows = zip(*(self.counted(of).tolist() for of in (node, own)), strict=True)
        start = self.delay(f"{name}.nccl", [self.alltoall_ps(n_bytes * sent, n_bytes * kept) for sent, kept in rows])
        for tails in after:
            self.wait_all(start, tails)
        pace, pools = self.costs.stores_ps(n_bytes), self.pools(1, "stores")
        for batch in batches:
            self.paced(operator, batch, pace, Discipline.PROGRAM_ORDER, pools=pools, begun=start)
        return start

    # ---- steps of all GPUs -------------------------------------------------------------------------------------------

    def flags(self, name: str, per_pair: int, after: I32, heads: I32) -> None:
        """Every GPU sends `per_pair` words to every GPU of its NVLink domain after the op `after[gpu]`.

        `heads[gpu]` waits for all words that the GPU receives.
        """
        g = self.n_gpus
        size = self.cluster.domain_gpus
        _, row, tile = self.b.regions(np.arange(g), np.full(g, size * per_pair), WORD_BYTES, size * per_pair, alloc=Alloc.PREFIX, name=name)
        source, word, place = (axis.ravel() for axis in np.meshgrid(np.arange(g), np.arange(per_pair), np.arange(size), indexing="ij"))
        target = source - source % size + place
        template = self.transfer(name, Kind.PUT, "other", cls=OTHER, framing=CONTROL)
        node, to = (axis.astype(np.int32) for axis in (source, target))
        rows = row + (target * size + source % size) * per_pair + word
        op = self.puts(template, node, to, rows, issuer=self.issuers(name)[source], bytes=WORD_BYTES)
        self.wait_first(Batch(op=op, node=node), after)
        self.wait_tiles(heads, ids(tile, g))

    def barrier(self, name: str, ends: str, after: I32, simulated_ps: int = 0) -> I32:
        """Every GPU sends a flag to every GPU after the op `after[gpu]`, and polls the flags that it receives.

        `simulated_ps`: the part of the exchange that the Program has simulated before.

        Returns `[gpus]` the polls, DELAYs called `ends`.
        """
        poll = self.delay(ends, max(0, self.costs.sync_ps - self.flight_ps - simulated_ps))
        self.flags(f"{name}.barrier", 1, after, poll)
        return poll

    def barrier_after(self, name: str, ends: str, start: I32, sends: Batch) -> I32:
        """A barrier after all `sends` of all GPUs. A GPU that sends nothing arrives with its op `start[gpu]`.

        Returns `[gpus]` the polls.
        """
        return self.barrier(name, ends, self.join(f"{name}.sent", start, sends), self.visible_ps)


class SoftwareSteps:
    """The steps as they were asked for before a builder had them itself: `SoftwareSteps(layer)` is `layer`."""

    def __new__(cls, layer: SoftwareBase) -> Any:
        return layer

    def __init_subclass__(cls) -> None:
        raise ConfigError(f"class {cls.__name__}: found base SoftwareSteps, expected Kernels, which has the steps itself (docs/writing-a-system.md)")
