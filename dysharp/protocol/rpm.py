"""RPM (Runtime Packet Manager) of a MoE-Hub: a buffer per peer that merges stores to whole packets, and its scheduler.

| rule | order |
|---|---|
| 1 | peers in turn |
| 2 | entries older than the timer first, the oldest first: what waits must leave |
| 3 | stores before `.nop` stores |
| 4 | whole packets before partial ones |
| 5 | smallest row id, then oldest |

Partial entries wait for more bytes until the timer expires, their partition is full, or the unit drains.
Source: MoE-Hub (arXiv 2605.05888). The paper leaves the order of rules 2 to 5 among each other open: docs/design/0013.
"""

from collections.abc import Hashable
from dataclasses import field, replace

from dysharp.base import Numbers, frozen
from dysharp.isa.sram import PEER, Sram, entry
from dysharp.protocol.frozen import Table, put

LINE_BYTES = 128
ALL = (1 << LINE_BYTES) - 1
Tag = tuple[Hashable, bool]  # (line of the destination, low priority)

PARTITION = Sram(
    entry=entry("packet manager", line=LINE_BYTES * 8, mask=LINE_BYTES, region=16, row=32, offset=9, low=1, age=16, valid=1), owner=PEER,
    meaning="lines in the packet manager of a GPU for one peer", entries=64,
)  # fmt: skip


@frozen
class _LineEntry:
    """One line on its way to a peer. `mask`: bit i = byte i is valid. `data`: byte by number, 0 where not valid."""

    row: int
    mask: int
    data: Numbers
    since: int


@frozen
class RpmState:
    """The partitions, in the order of peers. `last`: the peer that was served last. `now`: cycles."""

    entries: int
    """Entries of one partition."""
    timer: int
    """Cycles after which an entry leaves whatever its mask."""
    partitions: tuple[Table[Tag, _LineEntry], ...]
    last: int = -1
    now: int = 0
    draining: bool = field(default=False)
    """True: nothing more comes (a fence), so partial entries leave too."""


@frozen
class Write:
    """Bytes `first` .. `first + len(data) - 1` of a line for `peer`.

    `line`: (region, row, offset of the line) of a row store, or the address of the line of an ordinary store. `row`:
    the order of the line; the row id, or the age of an ordinary store. `low`: a `.nop` store.
    """

    peer: int
    line: Hashable
    row: int
    first: int
    data: bytes
    low: bool = False


@frozen
class SentLine:
    """A line leaves for `peer`."""

    peer: int
    line: Hashable
    row: int
    mask: int
    data: Numbers
    low: bool


def empty(peers: int, *, entries: int, timer: int) -> RpmState:
    """A unit without stores. `entries` is at least 1."""
    return RpmState(entries, timer, (Table(),) * peers)


def write(state: RpmState, store: Write) -> tuple[RpmState, bool]:
    """The unit after a store, and whether it had room. A store without room waits at the crossbar and asks again."""
    tag = (store.line, store.low)
    partition = state.partitions[store.peer]
    before = partition.get(tag)
    if before is None and len(partition) >= state.entries:
        return state, False
    entry = before or _LineEntry(store.row, 0, (0,) * LINE_BYTES, state.now)
    end = store.first + len(store.data)
    data = (*entry.data[: store.first], *store.data, *entry.data[end:])
    mask = entry.mask | ((1 << len(store.data)) - 1) << store.first
    return _with(state, store.peer, partition.put(tag, replace(entry, mask=mask, data=data))), True


def tick(state: RpmState, cycles: int = 1) -> RpmState:
    """The unit `cycles` later."""
    return replace(state, now=state.now + cycles)


def fence(state: RpmState) -> RpmState:
    """The unit after the end of the kernel: every entry may leave."""
    return replace(state, draining=True)


def send(state: RpmState, ready: tuple[bool, ...] | None = None) -> tuple[RpmState, SentLine | None]:
    """The unit after it sent one packet; None: no entry may leave. `ready`: peers whose link takes a packet."""
    n = len(state.partitions)
    for turn in range(1, n + 1):
        peer = (state.last + turn) % n
        if ready is not None and not ready[peer]:
            continue
        tag = _next(state, state.partitions[peer])
        if tag is not None:
            entry = state.partitions[peer][tag]
            after = replace(_with(state, peer, state.partitions[peer].without(tag)), last=peer)
            return after, SentLine(peer, tag[0], entry.row, entry.mask, entry.data, tag[1])
    return state, None


def _next(state: RpmState, partition: Table[Tag, _LineEntry]) -> Tag | None:
    """The entry that leaves next (rules 2 to 5)."""
    crowded = state.draining or len(partition) >= state.entries

    def rank(item: tuple[Tag, _LineEntry]) -> tuple[bool, int, bool, bool, int, int]:
        (_, low), entry = item
        stale = state.now - entry.since >= state.timer
        return not stale, entry.since if stale else 0, low, entry.mask != ALL, entry.row, entry.since

    may = [item for item in partition.items() if crowded or item[1].mask == ALL or state.now - item[1].since >= state.timer]
    return min(may, key=rank)[0] if may else None


def _with(state: RpmState, peer: int, partition: Table[Tag, _LineEntry]) -> RpmState:
    return replace(state, partitions=put(state.partitions, peer, partition))
