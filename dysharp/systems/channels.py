"""DeepEP's channels as they run: pairs of SMs, one pushing rows into a ring at the receiver, one taking them out.

Tokens of a GPU are cut into equal runs, one per channel. The warps of a sending SM are split evenly over the destinations, the own GPU too:
each group walks all tokens of its channel, passes those that do not go to its destination and copies the others, one copy at a time
(`deepep.copy_us`: slot, metadata, tail). Bytes share the SM, whichever group moves them, and what leaves a GPU shares the pace of SM stores.
A slot of the ring is held from the start of a copy until the receiver has taken the row; a receiver sees a row when it has been acknowledged
to the sender, which then moves the ring's tail. Source: deepseek-ai/DeepEP V1, normal kernels; spec/baselines.md section 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError
from dysharp.program import Discipline, Head, Kind, Tail, Template
from dysharp.systems.building.layer import LayerBuilder
from dysharp.systems.building.software_steps import SoftwareSteps

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
RING_SLOTS = 256  # tokens per (channel, source): DeepEP V1
BARRIERS = 2  # of a call with a cached handle: DeepEP V1
CHUNK = {"dispatch": 6, "combine": 4}  # tokens after which a sender moves a ring's tail: the tuned values of DeepEP's tests on eight GPUs


class Channels(SoftwareSteps):
    """`n_sm` SMs of every GPU as `n_sm / 2` channels."""

    def __init__(self, layer: LayerBuilder, n_sm: int) -> None:
        most = layer.cluster.n_sms
        if n_sm < 2 or n_sm % 2 or n_sm > most:
            raise ConfigError(f"deepep.n_sm: found {n_sm}, expected an even number of SMs from 2 to {most}")
        super().__init__(layer)
        self.n = n_sm // 2

    def _channel(self, token: I64 | I32) -> I64:
        """The channel of a token: its run among those of its GPU."""
        tokens = self.layer.tokens
        return token.astype(np.int64) % tokens * self.n // tokens

    def _rings(self, receiver: I32, channel: I64, source: I32) -> I64:
        """The ring of each row: one per (receiver, channel, source)."""
        return (receiver.astype(np.int64) * self.n + channel) * self.layer.n_gpus + source

    def _slots(self) -> int:
        """The slots of all rings as semaphores; returns the first."""
        layer, per_gpu = self.layer, self.layer.n_gpus * self.n
        first = layer.b.semaphore(0, RING_SLOTS, "ring", "tokens")
        for ring in range(1, layer.n_gpus * per_gpu):
            layer.b.semaphore(ring // per_gpu, RING_SLOTS, "ring", "tokens")
        return first

    def _seen(self, ring: I64, chunk: int) -> I64:
        """`[rows]` for each row, in the order of sending, the row whose arrival moves the tail past it: the last of its chunk in its ring."""
        order = np.argsort(ring, kind="stable")
        start = np.flatnonzero(np.append(True, ring[order][1:] != ring[order][:-1])[: len(order)])
        length = np.diff(np.append(start, len(order)))
        place = np.arange(len(order)) - np.repeat(start, length)
        last = np.minimum(place - place % chunk + chunk, np.repeat(length, length)) - 1
        seen = np.empty(len(order), np.int64)
        seen[order] = order[np.repeat(start, length) + last]
        return seen

    def call(self, name: str, after: I32 | None) -> I32:
        """The start of a kernel with a cached handle: launch, barriers, heads of the rings. Returns a DELAY per GPU."""
        start = self.delay(name, self.costs.ps("deepep.call_us") + BARRIERS * self.costs.sync_ps)
        if after is not None:
            self.all_wait(after, start)  # the barriers are those of all GPUs
        return start

    def _group(self, name: str, cost_ps: int, walk_ps: I64 | int, node: I32, channel: I64, to: I32) -> I64:
        """What the warps of one destination do before a copy's bytes: a DELAY of `cost_ps` and of the walk to its token. Returns the ops.

        Each group of each channel is an issuer of its own, in the order of the columns.
        """
        b, g = self.layer.b, self.layer.n_gpus
        stream = (node.astype(np.int64) * self.n + channel) * g + to
        used, of = np.unique(stream, return_inverse=True)
        pools = [b.pool(int(at) // (self.n * g), 1, "group") for at in used]
        issuers = np.array(
            [b.issuer(int(at) // (self.n * g), Discipline.PROGRAM_ORDER, pool=pool, name="group") for at, pool in zip(used, pools, strict=True)],
            np.int32,
        )
        walks, index = np.unique(np.broadcast_to(walk_ps, stream.shape), return_inverse=True)
        duration = b.duration([0, *(max(1, cost_ps + w) for w in walks.tolist())])
        template = Template(f"{name}.group", Kind.DELAY, name, "delay", tasks=1, duration=duration)
        return b.ops(b.template(template), node, issuer=issuers[of], rows=1 + index) + np.arange(len(node))

    def _walked(self, ring: I64, token: I32 | I64) -> I64:
        """`[rows]` tokens of its channel that a group has come past since its last copy, the copied one included. `ring` tells groups apart."""
        tokens, n = self.layer.tokens, self.n
        local = token.astype(np.int64) % tokens
        place = local - -(-self._channel(token) * tokens // n)  # the channel's first token
        order = np.lexsort((place, ring))
        since = np.diff(place[order], prepend=-1)
        first = np.append(True, ring[order][1:] != ring[order][:-1])[: len(order)]
        walked = np.empty(len(order), np.int64)
        walked[order] = np.where(first, place[order] + 1, since)
        return walked

    def dispatch(self) -> I32:
        """Dispatch of all tokens. Returns the JOIN of each GPU that has taken all its rows out."""
        layer, costs = self.layer, self.costs
        p, source = layer.p, layer.pair_source
        puts = layer.dispatch_puts(Discipline.READY_FIFO)
        order = np.lexsort(((p.gpu - source) % layer.n_gpus, p.token))  # the peers in turn, from the own GPU on
        token, channel = p.token[order], self._channel(p.token)
        copy = costs.copy_ps("sm.copy_GBps", layer.sent_bytes)
        first = np.append(True, token[1:] != token[:-1])[: len(token)]
        ring = self._rings(p.gpu, channel, source)[order]
        walk = self._walked(ring, token) * costs.ps("deepep.token_us")
        groups = self._group("dispatch", costs.ps("deepep.copy_us"), walk, source[order], channel[order], p.gpu[order])
        # A token's look-up takes issue slots of the SM too, once: its groups walk side by side.
        send = self.issuers("send", Discipline.READY_FIFO, self.n)[source[order], channel[order]]
        sends = self.copies("dispatch", [0, copy, copy + costs.ps("deepep.token_us")], source[order], send, 1 + first)
        layer.b.edges(Tail.OP_DONE, groups, Head.OP_ISSUE, sends)
        takes = self.copies("dispatch", [0, copy], p.gpu, self.issuers("receive", Discipline.READY_FIFO, self.n)[p.gpu, channel], 1)
        pair = puts + np.arange(len(p.gpu))
        stores = self.paced("dispatch", pair, source, p.gpu, costs.stores_ps(layer.sent_bytes))
        layer.b.edges(Tail.OP_DONE, sends, Head.OP_ISSUE, stores[order])
        layer.b.edges(Tail.OP_DONE, pair[order][self._seen(ring, CHUNK["dispatch"])], Head.OP_ISSUE, takes[order])
        layer.b.hold(self._slots() + ring, groups, takes[order])
        self.starts(self.call("dispatch.call", None), groups, ring, source[order])
        received = self.join("received")
        self.sent(takes, p.gpu, received)
        return received

    def combine(self, finished: I32) -> None:
        """Rows go back when `finished[gpu]` of all GPUs have; the source sums the copies of a token when the last one is there."""
        layer, costs, p = self.layer, self.costs, self.layer.p
        order = layer.push_order
        puts = layer.combine_puts(Discipline.READY_FIFO)
        token, gpu, source = p.token[order], p.gpu[order], layer.pair_source[order]
        channel = self._channel(token)
        ring = self._rings(source, channel, gpu)
        groups = self._group("combine", costs.ps("deepep.copy_us"), 0, gpu, channel, source)
        send = self.issuers("send back", Discipline.READY_FIFO, self.n)[gpu, channel]
        sends = self.copies("combine", [0, costs.copy_ps("sm.copy_GBps", layer.model.row_bytes)], gpu, send, 1)
        layer.b.edges(Tail.OP_DONE, groups, Head.OP_ISSUE, sends)
        warps = costs.whole("deepep.tokens_in_flight")
        each = [costs.ps("deepep.reduce_token_us") + costs.copy_ps("sm.copy_GBps", n * layer.model.row_bytes) for n in range(1, layer.n_gpus + 1)]
        reducer = self.issuers("reduce", Discipline.READY_FIFO, self.n, warps)[layer.sent_source, self._channel(layer.sent)]
        sums = self.copies("combine", [0] + [warps * ps for ps in each], layer.sent_source, reducer, layer.token_pairs[layer.sent])
        sum_of_pair = sums[layer.sent_of_pair[order]]
        pair = puts + np.arange(len(order))
        layer.b.edges(Tail.OP_DONE, sends, Head.OP_ISSUE, self.paced("combine", pair, gpu, source, costs.stores_ps(layer.model.row_bytes)))
        layer.b.edges(Tail.OP_DONE, pair[self._seen(ring, CHUNK["combine"])], Head.OP_ISSUE, sum_of_pair)
        layer.b.hold(self._slots() + ring, groups, sum_of_pair)
        self.starts(self.call("combine.call", finished), groups, ring, gpu)
