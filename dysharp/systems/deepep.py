"""DeepEP normal kernels: push, one copy per distinct GPU each way, operators one after the other.

Real form: channels of SM pairs. The first SM of a pair pushes rows into rings at the receivers. The second SM takes
rows out of the rings of its own GPU.

- The tokens of a GPU are cut into equal runs, one per channel.
- The warps of a sending SM are split evenly over the destinations, the own GPU included.
- Each group of warps walks all tokens of its channel. It copies the tokens for its destination, one at a time
  (`deepep.copy_us`: slot, metadata, tail).
- All copies of an SM share its copy rate. All bytes that leave a GPU share the pace of SM stores.
- A slot of a ring is held from the start of a copy until the receiver has taken the row.
- A receiver sees a row when the sender has moved the tail of the ring, after the acknowledgement of the row.
"""

import numpy as np

from dysharp.program import I32, I64, Discipline, frozen, runs, spans, starts
from dysharp.specs import choice_int
from dysharp.systems import BOTH_FORMS, BY_TYPE, HOPPER_ON, Costs, Facts, Form, Moves, Reach, Ships, Shown, kernels
from dysharp.systems.building import ROWS_OR_FP8, Batch, Internode, Kernels, pairs_of_sms, placed
from dysharp.systems.building.between.deepep_internode import MOST_DOMAINS

RING_SLOTS = 256  # token rows per (channel, source): DeepEP V1
BARRIERS = 2  # barriers in a call with a cached handle: DeepEP V1
CHUNK = {"dispatch": 6, "combine": 4}
"""A sender moves the tail of a ring after this many tokens: tuned values of DeepEP's tests on eight GPUs."""


@frozen
class Options(Form):
    """Options of DeepEP's normal kernels.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `n_sm` | SMs of the communication kernels; real form only |
    | `dispatch` | format of rows: "rows" (the model's) or "fp8" (a byte per element and an FP32 scale per 128) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds SM channels, rings, launches and barriers with their costs.
    """

    n_sm: int = choice_int("deepep.n_sm")
    dispatch: str = "rows"
    compute: bool = True


FACTS = Facts(
    source="https://github.com/deepseek-ai/DeepEP (V1, normal)",
    options=Options,
    moves=Moves("one_copy_per_gpu", between="two_hop", formats=ROWS_OR_FP8),
    costs=Costs(
        permutes=1,
        fused=False,
        drops="channels of SM pairs, ring queues, launches and barriers, the receiver's copy-out (form real has them); the host's wait for counts",
    ),
    reach=Reach(domains=BOTH_FORMS, most=MOST_DOMAINS, no_switch=("paper",)),
    shown=Shown("#0072B2"),
    ships=Ships("DeepEP README: Hopper; measured on Blackwell too; csrc/deep_ep.cpp: rows of whole 16 B", HOPPER_ON, BY_TYPE, step=16),
)


@kernels("deepep", FACTS, between=Internode)
class Channels(Kernels):
    """DeepEP channels: `n_sm` SMs of every GPU make `n_sm / 2` channels."""

    def prepare(self) -> None:
        self.n = pairs_of_sms(self)

    def _channel(self, token: I64 | I32) -> I64:
        """The channel of each token. Channels split the tokens of a GPU into equal runs."""
        tokens = self.tokens
        return token.astype(np.int64) % tokens * self.n // tokens

    def _rings(self, receiver: I32, channel: I64, source: I32) -> I64:
        """The ring of each row: one per (receiver, channel, source)."""
        return (receiver.astype(np.int64) * self.n + channel) * self.n_gpus + source

    def _slots(self, ring: I64) -> I32:
        """Add a semaphore per ring with the slots of the ring. Returns that of each `ring` (`_rings`)."""
        return self.semaphores(RING_SLOTS, "ring", each=self.n_gpus * self.n)[ring]

    def _seen(self, ring: I64, chunk: int) -> I64:
        """`[rows]` for each row, the last row of its chunk in its ring: its arrival moves the tail past the row.

        Rows are in the order of sending.
        """
        order = np.argsort(ring, kind="stable")
        start, length = runs(ring[order])
        place = spans(0, length)
        last = np.minimum(place - place % chunk + chunk, np.repeat(length, length)) - 1
        return placed(len(order), order, order[np.repeat(start, length) + last])

    def call(self, name: str, after: I32 | None) -> I32:
        """Add the start of a kernel with a cached handle, after `after` of all GPUs. Returns `[gpus]` its DELAYs.

        The start consists of the launch, the barriers and the reset of the ring heads.
        """
        return self.delay(name, self.costs.ps("deepep.call_us") + BARRIERS * self.costs.sync_ps, after_all=after)

    def _group(self, operator: str, cost_ps: int, walk_ps: I64 | int, node: I32, channel: I64, to: I32) -> Batch:
        """Add a DELAY per copy: the time of the warps of one destination before the bytes move.

        A DELAY lasts `cost_ps` and the walk to the token, `walk_ps`. Each group of each channel has an issuer, which
        takes its copies in the order of the arrays.
        """
        g = self.n_gpus
        group = (node.astype(np.int64) * self.n + channel) * g + to
        groups, group_index = np.unique(group, return_inverse=True)
        issuers = self.issuers("group", slots=1, node=groups // (self.n * g))
        walks, walk_index = np.unique(np.broadcast_to(walk_ps, group.shape), return_inverse=True)
        durations = [0, *(max(1, cost_ps + walk) for walk in walks.tolist())]
        return self.copies(operator, durations, node, issuers[group_index], 1 + walk_index, name="group")

    def _walked(self, ring: I64, token: I32 | I64) -> I64:
        """`[rows]` the number of tokens that a group has passed since its last copy, the copied token included.

        One group fills one `ring`.
        """
        tokens, n = self.tokens, self.n
        local = token.astype(np.int64) % tokens
        place = local - -(-self._channel(token) * tokens // n)  # the channel's first token
        order = np.lexsort((place, ring))
        since = np.diff(place[order], prepend=-1)
        first = starts(ring[order])
        return placed(len(order), order, np.where(first, place[order] + 1, since))

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` JOINs: `[gpu]` ends when the GPU has taken all its rows out of the rings."""
        puts = self.dispatch_puts(Discipline.READY_FIFO)
        order = np.lexsort(((puts.to - puts.node) % self.n_gpus, self.p.token))  # peers in turn, own GPU first
        token, channel = self.p.token[order], self._channel(self.p.token)
        copy = self.costs.copy_ps("sm.copy_GBps", self.sent_bytes)
        first = starts(token)
        source, ring = puts.node[order], self._rings(puts.to, channel, puts.node)[order]
        walk = self._walked(ring, token) * self.costs.ps("deepep.token_us")
        groups = self._group("dispatch", self.costs.ps("deepep.copy_us"), walk, source, channel[order], puts.to[order])
        # Looking a token up takes issue slots of the SM once, although all groups walk past the token.
        sender = self.sms("send", self.n)[source, channel[order]]
        sends = self.copies("dispatch", [0, copy, copy + self.costs.ps("deepep.token_us")], source, sender, 1 + first, after=groups.op)
        takes = self.copies("dispatch", [0, copy], puts.to, self.sms("receive", self.n)[puts.to, channel])
        stores = self.paced("dispatch", puts, self.costs.stores_ps(self.sent_bytes))
        self.wait_each(stores.op[order], sends.op)
        self.wait_each(takes.op[order], puts.op[order][self._seen(ring, CHUNK["dispatch"])])
        self.b.hold(self._slots(ring), groups.op, takes.op[order])
        self.wait_first(groups, self.call("dispatch.call", None), stream=ring)
        return self.join("received", takes)

    def combine(self, finished: I32) -> None:
        """Add Combine. It starts when `finished[gpu]` of all GPUs are done.

        The source sums the copies of a token when the last copy has arrived.
        """
        puts = self.combine_puts(Discipline.READY_FIFO)
        channel = self._channel(self.p.token[puts.unit])
        ring = self._rings(puts.to, channel, puts.node)
        groups = self._group("combine", self.costs.ps("deepep.copy_us"), 0, puts.node, channel, puts.to)
        sender = self.sms("send back", self.n)[puts.node, channel]
        sends = self.copies("combine", [0, self.costs.copy_ps("sm.copy_GBps", self.model.row_bytes)], puts.node, sender, after=groups.op)
        warps = self.costs.whole("deepep.tokens_in_flight")
        reduce, row = self.costs.ps("deepep.reduce_token_us"), self.model.row_bytes
        each = [reduce + self.costs.copy_ps("sm.copy_GBps", n * row) for n in range(1, self.n_gpus + 1)]
        reducer = self.sms("reduce", self.n, side_by_side=warps)[self.p.sent_source, self._channel(self.p.sent)]
        sums = self.copies("combine", [0] + [warps * ps for ps in each], self.p.sent_source, reducer, self.p.token_pairs[self.p.sent])
        sum_of_put = sums.op[self.p.sent_of_pair[puts.unit]]
        self.paced("combine", puts, self.costs.stores_ps(self.model.row_bytes), after=sends.op)
        self.wait_each(sum_of_put, puts.op[self._seen(ring, CHUNK["combine"])])
        self.b.hold(self._slots(ring), groups.op, sum_of_put)
        self.wait_first(groups, self.call("combine.call", finished), stream=ring)
