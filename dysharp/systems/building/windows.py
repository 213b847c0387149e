"""Tokens in flight per source GPU: what the bandwidth-delay product needs and what the published tables carry.

One rule for every model, top-k, routing and cluster (docs/design/0010-tables-and-trains.md):

| quantity | Dispatch and Combine overlap | one after the other |
|---|---|---|
| token rate of a source | the rate at which the link of the busiest hub is full | the same |
| dispatch window | token rate x idle round trip x headroom | half of the combine window |
| combine window | twice the dispatch window, so that copies of Dispatch do not crowd out Combine | what the tables carry |
| limit of the AL TLB | rows whose packets are still under way at the busiest hub, in both operators together | in one operator |
| limit of the reduction table | tokens whose sessions always fit | the same |
"""

import math

from dysharp.base import PS_PER_US, frozen, ns_to_ps
from dysharp.isa.framing import Framing, push_train
from dysharp.specs import PACKET_BYTES, Cluster, Model, choice_int

PUBLISHED_SUMS, PUBLISHED_ROWS = 256, 512
"""Entries of the published tables, a reduction table of 64 KB and an AL TLB. Sources keep to them whatever the sizes of the simulated tables."""


@frozen
class Flow:
    """Rows at the busiest hub when its link is full.

    `rows_per_us`: rows on the link of one direction. `tokens_per_us`: tokens that one source sends. `dispatch_us`,
    `combine_us`: idle round trips of a token, the read of the AL Table included where `entries` is above 0. `entries`:
    rows in the AL TLB of a hub, 0 = the system asks no table. `sessions`: tokens whose reduction sessions always fit.
    """

    rows_per_us: float
    tokens_per_us: float
    dispatch_us: float
    combine_us: float
    entries: int
    sessions: int

    def windows(self, *, together: bool) -> tuple[int, int]:
        """(dispatch, combine) windows, at least 1. `together`: Dispatch and Combine are under way at once."""
        if not together:
            combine = max(1, math.floor(min(self.tokens_per_us * (self.queue_us + self.combine_us), self.sessions)))
            return max(1, combine // 2), combine
        # Combine has twice the window of Dispatch: three windows of queues in all. Where links are short its round trip is the responder's time.
        fits = self.tokens_per_us * (self.queue_us + self.dispatch_us + self.combine_us) / 3
        rate = self.tokens_per_us * choice_int("dysharp.window_headroom") / 100
        dispatch = max(1, math.floor(min(rate * max(self.dispatch_us, self.combine_us / 2) + 1, fits, self.sessions)))
        return dispatch, min(2 * dispatch, self.sessions)

    @property
    def queue_us(self) -> float:
        """The longest time in queues at which rows under way fit the AL TLB, infinite without a table.

        A token in flight beyond the idle round trip waits in queues. Its packets wait in different queues, so they may arrive apart by a waiting
        time: rows under way = rate x waiting time.
        """
        return self.entries / self.rows_per_us if self.entries else math.inf


def sessions_that_fit(model: Model, cluster: Cluster, aux_bytes: int = 0, *, table: int = PUBLISHED_SUMS) -> int:
    """Number of tokens (at least 1) whose reduction sessions always fit the reduction tables of the source's ports.

    A token of n packets takes at most ceil(n / links) sessions in one port. `aux_bytes`: bytes summed with every row. `table`: sessions of a port.
    """
    packets = -(-model.row_bytes // PACKET_BYTES) + -(-aux_bytes // PACKET_BYTES)
    return max(1, table // (-(-packets // cluster.links_per_gpu)))


def link_rows_per_us(cluster: Cluster, framing: Framing, row_bytes: int, aux_bytes: int) -> float:
    """Rows per microsecond that one link direction of a GPU carries."""
    return cluster.link_bytes_per_us / push_train(framing, row_bytes, 1, aux_bytes).down


def misses_under_way(rows_per_us: float, chosen: int = 0) -> int:
    """Miss registers of a hub whose links carry `rows_per_us`: every first touch of a row is a miss, in Dispatch and in Combine.

    `chosen`: a system's option; 0 = the choice `hub.al_misses`, whose 0 means what the rate needs: the power of two at or above
    2 x rate x time of a miss (docs/design/0023-miss-registers.md).
    """
    chosen = chosen or choice_int("hub.al_misses")
    wanted = 2 * rows_per_us * ns_to_ps(choice_int("hub.al_miss_ns")) / PS_PER_US
    return chosen or 1 << max(0, math.ceil(wanted) - 1).bit_length()
