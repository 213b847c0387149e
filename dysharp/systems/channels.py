"""DeepEP's channels as they run: pairs of SMs, one pushing rows into a ring at the receiver, one taking them out.

Tokens of a GPU are cut into equal runs, one per channel. The sending SM pays per token, per copy and per byte, for copies to its own GPU too. A
slot of the ring is held from the start of a copy until the receiver has taken the row; a receiver sees a row when it has been acknowledged to
the sender, which then moves the ring's tail. Source: deepseek-ai/DeepEP V1, normal kernels; spec/baselines.md section 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError
from dysharp.program import Discipline, Head, Tail
from dysharp.systems.kernels import Kernels
from dysharp.systems.layer import Layer

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
RING_SLOTS = 256  # tokens per (channel, source): DeepEP V1
BARRIERS = 2  # of a call with a cached handle: DeepEP V1
CHUNK = {"dispatch": 6, "combine": 4}  # tokens after which a sender moves a ring's tail: the tuned values of DeepEP's tests on eight GPUs


class Channels(Kernels):
    """`n_sm` SMs of every GPU as `n_sm / 2` channels."""

    def __init__(self, layer: Layer, n_sm: int) -> None:
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

    def dispatch(self) -> I32:
        """Dispatch of all tokens. Returns the JOIN of each GPU that has taken all its rows out."""
        layer, costs = self.layer, self.costs
        p, source = layer.p, layer.pair_source
        puts = layer.dispatch_puts(Discipline.READY_FIFO)
        order = np.lexsort(((p.gpu - source) % layer.n_gpus, p.token))  # the peers in turn, from the own GPU on
        token, channel = p.token[order], self._channel(p.token)
        copy = costs.ps("deepep.copy_us") + costs.copy_ps("sm.copy_GBps", layer.sent_bytes)
        first = np.append(True, token[1:] != token[:-1])[: len(token)]
        send = self.issuers("send", Discipline.PROGRAM_ORDER, self.n)[source[order], channel[order]]
        sends = self.copies("dispatch", [0, copy, copy + costs.ps("deepep.token_us")], source[order], send, 1 + first)
        takes = self.copies("dispatch", [0, copy], p.gpu, self.issuers("receive", Discipline.READY_FIFO, self.n)[p.gpu, channel], 1)
        pair = puts + np.arange(len(p.gpu))
        ring = self._rings(p.gpu, channel, source)[order]
        layer.b.edges(Tail.OP_DONE, sends, Head.OP_ISSUE, pair[order])
        layer.b.edges(Tail.OP_DONE, pair[order][self._seen(ring, CHUNK["dispatch"])], Head.OP_ISSUE, takes[order])
        layer.b.hold(self._slots() + ring, sends, takes[order])
        self.starts(self.call("dispatch.call", None), sends, send, source[order])
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
        copy = costs.ps("deepep.copy_us") + costs.copy_ps("sm.copy_GBps", layer.model.row_bytes)
        send = self.issuers("send back", Discipline.PROGRAM_ORDER, self.n)[gpu, channel]
        sends = self.copies("combine", [0, copy], gpu, send, 1)
        warps = costs.whole("deepep.tokens_in_flight")
        each = [costs.ps("deepep.reduce_token_us") + costs.copy_ps("sm.copy_GBps", n * layer.model.row_bytes) for n in range(1, layer.n_gpus + 1)]
        reducer = self.issuers("reduce", Discipline.READY_FIFO, self.n, warps)[layer.sent_source, self._channel(layer.sent)]
        sums = self.copies("combine", [0] + [warps * ps for ps in each], layer.sent_source, reducer, layer.token_pairs[layer.sent])
        sum_of_pair = sums[layer.sent_of_pair[order]]
        pair = puts + np.arange(len(order))
        layer.b.edges(Tail.OP_DONE, sends, Head.OP_ISSUE, pair)
        ring = self._rings(source, channel, gpu)
        layer.b.edges(Tail.OP_DONE, pair[self._seen(ring, CHUNK["combine"])], Head.OP_ISSUE, sum_of_pair)
        layer.b.hold(self._slots() + ring, sends, sum_of_pair)
        self.starts(self.call("combine.call", finished), sends, send, gpu)
