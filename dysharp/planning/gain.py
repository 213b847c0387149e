"""Where the switch pays: layers of paper systems as queues in series, and the gain of each mechanism over the best system without it.

Rows pass the links of their source and of their GPU, its hub where addresses are dynamic, its SMs in tiles, and links home. Each serves rows in the
order in which they come. A source's rows leave at the pace of the slowest link on their ways, because a row that waits holds those behind it.
"""

from collections.abc import Mapping
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from dysharp.base import F64, PS_PER_US, Amounts, Ints, Texts, ns_to_ps
from dysharp.costs import mean_share, narrow_bytes, tile_task
from dysharp.isa.framing import Framing, pull_train, push_train
from dysharp.specs import Cluster, Model, choice_int
from dysharp.systems.building import DYMULTIMEM, STORE
from dysharp.systems.building.experts import gang, stages
from dysharp.systems.building.index import PairIndex
from dysharp.systems.building.layer import EXPLICIT
from dysharp.systems.building.windows import link_rows_per_us, misses_under_way
from dysharp.workload import Routing

MECHANISMS: Mapping[str, Texts] = {
    "overlap": ("comet", "fusion-only"), "multicast": ("multicast-only", "dysharp"), "reduction": ("reduction-only", "dysharp"),
    "switch": ("multicast-only", "reduction-only", "dysharp"),
}  # fmt: skip
"""Mechanism -> the systems of `layer_us` with it. `overlap` is compared before the switch."""
SWITCH = MECHANISMS["switch"]
SYSTEMS = ("deepep", "comet", "fusion-only", *SWITCH)
EVEN = 0.05
"""Gains below this part either way the closed forms do not tell from none (docs/notebook/2026-11-28-gain-map-found.md)."""
FAR = 1e9
"""Longer than a layer, us."""
TIE = 1e-6
"""Orders what begins at one time."""


def gains(us: Mapping[str, float]) -> Amounts:
    """{mechanism: what the best system with it gains over the best system without it}; below 0 it costs time. `us`: of `SYSTEMS`."""
    return {name: us[without] / us[best] - 1 for name in MECHANISMS for without, best in [_sides(us, name)]}


def of_switch(us: Mapping[str, float]) -> str:
    """What the switch saves among {system: us}; "" where no system has it, or the best schedule without it is not there."""
    if "fusion-only" not in us or not us.keys() & {*SWITCH}:
        return ""
    without, best = _sides(us, "switch")
    verb, named = "saves" if us[best] < us[without] else "costs", "" if best == "dysharp" else f" of {best}"
    return f"Without the switch, {without} takes {us[without]:.1f} us: the switch{named} {verb} {abs(1 - us[best] / us[without]):.0%}."


def _sides(us: Mapping[str, float], name: str) -> tuple[str, str]:
    """The best system without the mechanism `name` and the best with it, of those in `us`."""
    without = [one for one in SYSTEMS if one not in MECHANISMS[name] and (name != "overlap" or one not in SWITCH)]
    found = [min((one for one in side if one in us), key=us.__getitem__) for side in (without, MECHANISMS[name])]
    return found[0], found[1]


def layer_us(model: Model, cluster: Cluster, routing: Routing) -> Amounts:
    """A forward layer of `SYSTEMS` in paper form, in us. One NVLink domain with switches."""
    layer = _ClosedLayer(model, cluster, routing)
    return {
        "deepep": layer.in_turn(), "comet": layer.in_pairs(), "fusion-only": layer.fused(STORE, STORE),
        "multicast-only": layer.fused(EXPLICIT, STORE), "reduction-only": layer.fused(STORE, EXPLICIT),
        "dysharp": layer.fused(DYMULTIMEM, DYMULTIMEM),
    }  # fmt: skip


class _Sent(NamedTuple):
    """Dispatch: when rows are on the GPU of each pair, and `[gpus]` when the last row of each source has left, and us of its links."""

    pairs: F64
    left: F64
    up: F64
    down: F64


def _served(at: F64, work: Any, server: Ints) -> F64:
    """When items that come `at` and need `work` of their `server` are done, one after the other in the order in which they come."""
    order = np.lexsort((at, server))
    total, far = np.cumsum(np.broadcast_to(work, at.shape)[order]), server[order] * FAR
    done = np.empty_like(at)
    done[order] = total + np.maximum.accumulate(at[order] - np.concatenate([[0.0], total[:-1]]) + far) - far
    return done


class _ClosedLayer:
    """One layer: its pairs of token and GPU, its tiles, and its links. Times are in us; `[gpus]` per GPU."""

    def __init__(self, model: Model, cluster: Cluster, routing: Routing) -> None:
        self.model, self.cluster, self.x, self.n = model, cluster, PairIndex(routing), routing.n_gpus
        self.hop = cluster.link_latency_ps / PS_PER_US
        names = "hub.al_miss_ns", "machine.responder_ns", "dysharp.target_fetch_ns"
        self.miss, self.responder, self.fetch = (ns_to_ps(choice_int(name)) / PS_PER_US for name in names)
        self.gates = 16 * -(-choice_int("dysharp.gate_weight_bytes_per_expert") * model.topk // 16)
        self.read = self.miss / misses_under_way(link_rows_per_us(cluster, DYMULTIMEM, model.row_bytes, self.gates))
        self.slots = routing.placement.slots_per_gpu
        x = self.x
        self.away = np.flatnonzero(x.gpu != x.source)
        self.gpu, self.source = x.gpu[self.away], x.source[self.away]
        self.tokens, self.member = np.unique(x.token[self.away], return_inverse=True)
        self.home = self.tokens // x.tokens
        self.targets = max(1, round(len(self.away) / max(1, len(self.tokens))))
        self.here = np.bincount(x.gpu, x.rows, self.n) - np.bincount(x.gpu[x.gpu == x.source], x.rows[x.gpu == x.source], self.n)
        self.twice = self.here.max() > cluster.al_tlb_entries  # rows leave the table of the hub before Combine asks for them

    def us(self, *n_bytes: float) -> float:
        """Of a link."""
        return sum(n_bytes) / self.cluster.link_bytes_per_us

    def count(self, of: Ints) -> F64:
        """Items of each GPU."""
        return np.bincount(of, minlength=self.n).astype(np.float64)

    def dispatch(self, framing: Framing, up: Any = 0.0, down: Any = 0.0, again: float = 0.0) -> _Sent:
        """Copies in the order of their tokens, or one per token that the switch copies. `up`, `down`: what links do besides."""
        x, cast = self.x, framing != STORE
        train = push_train(framing, self.model.row_bytes, self.targets if cast else 1, self.gates)
        start = 2 * self.hop + self.fetch if cast else 0.0
        ups = self.count(self.home if cast else self.source) * self.us(train.up) + self.count(self.gpu) * self.us(train.ack_up) + up
        downs = self.count(self.gpu) * self.us(train.down) + self.count(self.home if cast else self.source) * self.us(train.ack_down) + down
        read = (1 + again * self.twice) * self.read if framing.targets_per_ext else 0.0
        to = np.zeros((self.n, self.n))
        to[self.source, self.gpu] = np.maximum(downs, read * self.here)[self.gpu]
        left = start + np.maximum(ups, to.max(axis=1))
        pairs = np.full(len(x.gpu), start)
        part = (x.token[self.away] % x.tokens + 1) / x.tokens
        pairs[self.away] = start + 2 * self.hop + part * (left[self.source] - start)
        if read:
            pairs[self.away] = _served(pairs[self.away], read * x.rows[self.away], self.gpu) + self.miss
        return _Sent(pairs, left, ups, downs)

    @cached_property
    def costs(self) -> list[tuple[F64, F64, int]]:
        """(us of a task by the rows of its tile, us of its bytes in memory, tasks of a tile) of each stage."""
        high = choice_int("gemm.tile_rows")
        share, found = mean_share(high, len(self.x.slot) / max(1, len(np.unique(self.x.slot)))), []
        for (gemm, *_) in stages(self.model, "fwd"):
            shape = self.cluster, self.model.gemm_dtype, gemm.columns, gemm.depth, high, share
            task = tile_task(*shape, gemm.epilogue_bytes, weight_bytes=narrow_bytes(self.model))
            found.append((task.ps / PS_PER_US, task.bytes / self.cluster.shared_memory_rate, gang(gemm)))
        return found

    def done(self, ready: F64, gpu: Ints, rows: Ints, stages: list[tuple[F64, F64, int]]) -> F64:
        """When the tiles have passed `stages`: all SMs and the memory work on them in turn, and the last task has an SM of its own."""
        sms, (last, _, tasks) = self.cluster.n_sms, stages[-1]
        work, moved = sum(us[rows] * n / sms for us, _, n in stages), sum(memory[rows] * n for _, memory, n in stages)
        least = sum(np.maximum(us[rows] * -(-n // sms), memory[rows] * n) for us, memory, n in stages)
        drained = last[rows] * max(0.0, 1 - tasks / sms)
        done = reduce(np.maximum, (_served(ready, work, gpu) + drained, _served(ready, moved, gpu), ready + least))
        return np.maximum(done, self.done(ready, gpu, rows, stages[:1]) + last[rows]) if len(stages) > 1 else done

    def tiles(self, pairs: F64) -> tuple[F64, Ints, Ints, Ints]:
        """(ready, GPU, rows) by tile, and the tile of each row. `pairs`: when rows are there."""
        x, high = self.x, choice_int("gemm.tile_rows")
        at = np.repeat(pairs, x.rows)
        order = np.lexsort((at, x.slot))
        slot = x.slot[order]
        first = np.flatnonzero(np.diff(slot, prepend=-1))
        rank = np.arange(len(slot)) - np.repeat(first, np.diff(first, append=len(slot)))
        tile, of_row = np.cumsum(rank % high == 0) - 1, np.empty(len(slot), np.int64)
        last = np.flatnonzero(np.diff(tile, append=tile[-1] + 1))
        of_row[order] = tile
        return at[order][last], slot[last] // self.slots, rank[last] % high + 1, of_row

    def computed(self, pairs: F64) -> F64:
        """When all experts of each pair have computed both GEMMs."""
        ready, gpu, rows, of_row = self.tiles(pairs)
        return self.of_pairs(self.done(ready, gpu, rows, self.costs)[of_row])

    def of_pairs(self, rows: F64) -> F64:
        """The last row of each pair."""
        return np.maximum.reduceat(rows, self.x.slot_ptr[:-1])

    def pushed(self, ready: F64, left: F64) -> tuple[float, F64, F64, F64]:
        """A Combine that pushes the sums of GPUs when they are `ready`: its end, us on up and down links, when its sums are home."""
        train = push_train(STORE, self.model.row_bytes, 1)
        up, down = self.us(train.up, train.ack_up), self.us(train.down, train.ack_down)
        at = ready[self.away]
        sent = _served(np.maximum(at, left[self.gpu]) + TIE * at, up, self.gpu)
        done = _served(sent + 2 * self.hop, down, self.source)
        return max(float(done.max(initial=0)) + 2 * self.hop, float(ready.max())), self.count(self.gpu) * up, self.count(self.source) * down, done

    def pulled(self, ready: F64, framing: Framing, left: F64) -> tuple[float, F64, F64, F64]:
        """As `pushed`: tokens ask for a sum when all of their experts have told."""
        x, train = self.x, pull_train(framing, self.model.row_bytes, self.targets)
        told = np.maximum.reduceat(ready, x.token_ptr[:-1])[x.token[self.away]] + 4 * self.hop
        if framing.targets_per_ext:
            told = _served(told, self.twice * self.read * x.rows[self.away], self.gpu) + self.miss
        sent = _served(np.maximum(told + self.responder, left[self.gpu]) + TIE * told, self.us(train.response), self.gpu)
        summed = np.zeros(len(self.tokens))
        np.maximum.at(summed, self.member, sent)
        done = _served(summed + 2 * self.hop, self.us(train.result), self.home)
        ups = self.count(self.gpu) * self.us(train.response) + self.count(self.home) * self.us(train.up)
        downs = self.count(self.home) * self.us(train.result) + self.count(self.gpu) * self.us(train.down)
        return max(float(done.max(initial=0)), float(ready.max())), ups, downs, done

    def fused(self, there: Framing, back: Framing) -> float:
        """Dispatch, tiles and Combine side by side. Stores of Dispatch wait for nothing, so Combine is behind them on a link."""
        up: Any = 0.0
        down: Any = 0.0
        end = again = 0.0
        for _ in range(3 if there != STORE else 1):
            sent = self.dispatch(there, up, down, again)
            ready = self.computed(sent.pairs)
            left = sent.left if there == STORE else np.zeros(self.n)
            end, ups, downs, done = self.pushed(ready, left) if back == STORE else self.pulled(ready, back, left)
            again, was = float((done < sent.left.max()).mean()), again
            up, down = again * ups, again * (downs + ups if back == STORE else downs)  # acknowledgements wait behind sums
        return max(end, float((sent.up + (1 - was) * ups).max()), float((sent.down + (1 - was) * downs).max()))

    def in_turn(self) -> float:
        """Each operator behind the one before."""
        sent, sms = self.dispatch(STORE), self.cluster.n_sms
        _, gpu, rows, _ = self.tiles(sent.pairs)
        n, gemms = np.bincount(gpu, minlength=self.n), 0.0
        for us, memory, tasks in self.costs:
            waves = np.bincount(gpu, us[rows], self.n) / np.maximum(n, 1) * -(-n * tasks // sms)
            gemms += float(np.maximum(waves, np.bincount(gpu, memory[rows] * tasks, self.n)).max())
        _, ups, downs, _ = self.pushed(sent.pairs, sent.left)
        return float(sent.left.max() + gemms + max(ups.max(), downs.max()) + 4 * self.hop)

    def in_pairs(self) -> float:
        """GEMM-1 beside Dispatch, then GEMM-2 beside Combine."""
        ready, gpu, rows, of_row = self.tiles(self.dispatch(STORE).pairs)
        half = np.full(len(ready), self.done(ready, gpu, rows, self.costs[:1]).max()) + TIE * ready
        return self.pushed(self.of_pairs(self.done(half, gpu, rows, self.costs[1:])[of_row]), np.zeros(self.n))[0]
