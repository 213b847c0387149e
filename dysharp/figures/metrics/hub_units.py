"""Table sizes of MoE-Hub's units: its state machines on the stores of eight producers to one consumer, packet by packet.

Every producer copies rows on `copiers` SMs at a time, in turn, twice as fast as the link. The default is 16 SMs and not the 132 of a GPU, because the
state machines are slow; sizes grow in proportion. One round is the time in which each producer sends one packet to this consumer; the consumer takes
the producers in turn. The count is no timing model: it says what the tables do.
"""

from collections import deque
from collections.abc import Iterator

from dysharp.base import Amounts, frozen
from dysharp.figures.metric import MEASURES, calculated
from dysharp.protocol import aau, rpm
from dysharp.runs import Point
from dysharp.specs.fields import Entries, EntriesOrInfinite

PRODUCERS = 8
ROUND_CYCLES = 10  # cycles of the hub (1.7 GHz) in which 200 GB/s carry eight packets of 144 B
ANSWER_ROUNDS = 52  # rounds of a read of the map: 300 ns
LINE = rpm.LINE_BYTES


@frozen
class _HubUnits:
    """Sizes of the units. `managed`: False leaves the packet manager out, so stores of `store_bytes` leave in order."""

    managed: bool = True
    rat_entries: Entries = 1024
    partition_entries: Entries = rpm.PARTITION.entries
    timer: EntriesOrInfinite = 256
    store_bytes: Entries = 128
    copiers: Entries = 16
    rows: Entries = 64
    row_bytes: Entries = 2048


@calculated("hub-units", options=_HubUnits)
def _hub_units(point: Point, units: _HubUnits) -> Amounts:
    """Run all rows of all producers through the units."""
    producers = [_packets(p, units) for p in range(PRODUCERS)]
    total = PRODUCERS * units.rows
    unit = aau.empty((aau.Region(0, units.row_bytes, total),), entries=units.rat_entries)
    reads: deque[tuple[int, aau.Key]] = deque()
    left, packets, n_reads, most, now, complete = dict.fromkeys(range(total), units.row_bytes), 0, 0, 0, 0, 0
    live = set(range(PRODUCERS))
    while live or reads:
        now += 1
        while reads and reads[0][0] <= now:
            unit, _ = aau.step(unit, aau.MapAnswer(reads.popleft()[1]))
        for p in sorted(live):
            sent = next(producers[p], None)
            if sent is None:
                live.discard(p)
            elif sent:
                row, n_bytes = sent
                unit, outputs = aau.step(unit, aau.RowPacket((0, row), 0, n_bytes, None))
                new = [(now + ANSWER_ROUNDS, o.key) for o in outputs if isinstance(o, aau.ReadMap)]
                reads.extend(new)
                packets, n_reads, left[row] = packets + 1, n_reads + len(new), left[row] - n_bytes
                complete += left[row] == 0
                most = max(most, unit.pointer[0] - complete)
    return dict(zip(MEASURES["hub-units"], (n_reads / total, total * units.row_bytes / packets, most), strict=True))


def _stores(producer: int, units: _HubUnits) -> Iterator[tuple[int, int]]:
    """(row id, first byte) of each store: `copiers` SMs in turn, each with a row of its own."""
    pieces = units.row_bytes // units.store_bytes
    for first in range(0, units.rows, units.copiers):
        rows = range(first, min(first + units.copiers, units.rows))
        for piece in range(pieces):
            for row in rows:
                yield row * PRODUCERS + producer, piece * units.store_bytes


def _packets(producer: int, units: _HubUnits) -> Iterator[tuple[int, int] | tuple[()]]:
    """(row id, bytes) of the packet that the producer sends in each round; () where it sends none."""
    stores = _stores(producer, units)
    if not units.managed:
        yield from ((row, units.store_bytes) for row, _ in stores)
        return
    data, state, waiting = bytes(units.store_bytes), rpm.empty(1, entries=units.partition_entries, timer=units.timer), next(stores, None)
    while True:
        for _ in range(2 * LINE // units.store_bytes):
            if waiting is None:
                break
            row, first = waiting
            state, taken = rpm.write(state, rpm.Write(0, (row, first // LINE), row, first % LINE, data))
            if not taken:
                break
            waiting = next(stores, None)
        state, packet = rpm.send(rpm.tick(rpm.fence(state) if waiting is None else state, ROUND_CYCLES))
        if packet is None and waiting is None:
            return
        yield (packet.row, packet.mask.bit_count()) if packet else ()
