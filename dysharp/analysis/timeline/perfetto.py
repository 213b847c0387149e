"""A Timeline as a Perfetto trace, for ui.perfetto.dev and trace_processor. One nanosecond of the file is one picosecond of the run.

Slices are written as arrays of packets of equal length: a protobuf reader accepts a varint with leading zero groups. All other packets
are written by the protobuf library.
"""

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dysharp.analysis.timeline.counters import Counter
from dysharp.analysis.timeline.links import GROUPS
from dysharp.analysis.timeline.tracks import Timeline
from dysharp.base.arrays import I64, Ints
from dysharp.base.files import write_file
from dysharp.base.units import ps_to_us
from dysharp.base.values import by_key

U8 = NDArray[np.uint8]
SEQUENCE = 1
TIME_BYTES, ID_BYTES, VALUE_BYTES = 7, 3, 5  # of varints: 2^49 ps are nine minutes
_BEGIN, _END, _COUNTER = 1, 2, 4  # TrackEvent.Type
_NEEDS_STATE = 2  # TracePacket.SequenceFlags
_CHUNK = 1 << 16


def write_perfetto(timeline: Timeline, path: str | Path, description: str) -> Path:
    """Write `timeline` to `path`, compressed where the name ends in .gz. Raises ConfigError where it cannot be written to."""
    file = Path(path)

    def write(stream: IO[bytes]) -> None:
        if file.suffix == ".gz":
            with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=3, mtime=0) as packed:
                _write(timeline, packed, description)
        else:
            _write(timeline, stream, description)

    return write_file(file, write)


def _write(timeline: Timeline, stream: Any, description: str) -> None:
    stream.write(_head(timeline, description))
    for chunk in _slices(timeline):
        stream.write(chunk)
    for i, counter in enumerate(timeline.counters):
        stream.write(_counter(counter, _counter_uuid(timeline, i)))


def _protos() -> Any:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2


# ---- tracks and names ------------------------------------------------------------------------------------------------


def _track_uuid(track: int) -> int:
    return 1 + track


def _counter_uuid(timeline: Timeline, counter: int) -> int:
    return 1 + len(timeline.tracks) + counter


def _head(timeline: Timeline, description: str) -> bytes:
    """Descriptors of processes, groups, tracks and counters, the names of slices, and a track with one slice that says what the run is."""
    protos = _protos()
    trace = protos.Trace()
    first = trace.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=1)  # the state of the sequence begins here
    first.interned_data.event_names.extend(protos.EventName(iid=i + 1, name=name) for i, name in enumerate(timeline.names))
    base = 1 + len(timeline.tracks) + len(timeline.counters)
    group_uuid: dict[tuple[int, str], int] = {}
    explicit = protos.TrackDescriptor.ChildTracksOrdering.EXPLICIT

    def describe(**fields: Any) -> Any:
        packet = trace.packet.add(trusted_packet_sequence_id=SEQUENCE)
        for name, value in fields.items():
            setattr(packet.track_descriptor, name, value)
        return packet.track_descriptor

    for gpu in range(timeline.n_gpus):
        process = describe(uuid=base + gpu, child_ordering=explicit).process
        process.pid, process.process_name = gpu + 1, f"GPU {gpu}"
    whole = base + timeline.n_gpus
    describe(uuid=whole, name=f"{description}; 1 ms here is 1 us simulated")
    groups = dict.fromkeys((t.gpu, t.group) for t in timeline.tracks)
    ranks = {name: i for i, name in enumerate(GROUPS)}
    for i, (gpu, group) in enumerate(groups):
        uuid = group_uuid[gpu, group] = base + timeline.n_gpus + 1 + i
        rank = ranks.get(group, len(GROUPS))
        describe(uuid=uuid, parent_uuid=base + gpu, name=group, child_ordering=explicit, sibling_order_rank=rank)
    for i, track in enumerate(timeline.tracks):
        describe(uuid=_track_uuid(i), parent_uuid=group_uuid[track.gpu, track.group], name=track.name, sibling_order_rank=i)
    for i, counter in enumerate(timeline.counters):
        entry = describe(uuid=_counter_uuid(timeline, i), parent_uuid=base + counter.gpu, name=counter.name, sibling_order_rank=10 + i)
        entry.counter.unit_name = counter.unit
    for at, kind in ((0, _BEGIN), (timeline.time_ps, _END)):  # a viewer leaves out a track without slices
        event = trace.packet.add(timestamp=at, trusted_packet_sequence_id=SEQUENCE, sequence_flags=_NEEDS_STATE).track_event
        event.type, event.track_uuid = kind, whole
        if kind == _BEGIN:
            event.name = f"{ps_to_us(timeline.time_ps):.2f} us"
    return bytes(trace.SerializeToString())


# ---- slices ----------------------------------------------------------------------------------------------------------


def _slices(timeline: Timeline) -> Iterator[bytes]:
    """Packets of all slices, begin and end side by side, in the order of tracks and time. Slices with flows are written one by one."""
    flows = by_key((place, flow.id) for flow in timeline.flows for place in flow.slices)
    cuts = [*sorted({*flows, *range(0, len(timeline.slices), _CHUNK)}), len(timeline.slices)]
    for first, last in pairwise(cuts):
        if first in flows:
            yield _with_flows(timeline, first, flows[first])
        rest = slice(first + (first in flows), last)
        if rest.stop > rest.start:
            yield _packets(timeline, rest).tobytes()


def _with_flows(timeline: Timeline, i: int, ids: list[int]) -> bytes:
    """The packets of one slice with its flows, its token and its bytes."""
    protos, s = _protos(), timeline.slices
    trace = protos.Trace()
    for at, kind in ((int(s.start[i]), _BEGIN), (int(s.end[i]), _END)):
        packet = trace.packet.add(timestamp=at, trusted_packet_sequence_id=SEQUENCE, sequence_flags=_NEEDS_STATE)
        event = packet.track_event
        event.type, event.track_uuid = kind, _track_uuid(int(s.track[i]))
        if kind == _BEGIN:
            event.name_iid = int(s.name[i]) + 1
            event.flow_ids.extend(ids)
            for name, value in (("token", int(s.token[i])), ("bytes", int(s.n_bytes[i]))):
                if value >= 0 and (name == "token" or int(s.token[i]) >= 0):  # tiles have rows in place of bytes
                    event.debug_annotations.add(name=name, uint_value=value)
    return bytes(trace.SerializeToString())


def _packets(timeline: Timeline, part: slice) -> U8:
    """`[n, 48]` bytes: the packets of begin and end of each slice."""
    s = timeline.slices
    n = part.stop - part.start
    track = _varint(s.track[part] + 1, ID_BYTES)
    name = _varint(s.name[part] + 1, ID_BYTES)
    begin = [_same(n, 0x48, _BEGIN, 0x58), track, _same(n, 0x50), name]
    end = [_same(n, 0x48, _END, 0x58), track]
    return np.hstack([*_packet(s.start[part], begin), *_packet(s.end[part], end)])


def _packet(at: I64, event: list[U8]) -> list[U8]:
    """The columns of packets with a TrackEvent: length, timestamp, sequence, flags, event."""
    n = len(at)
    size = sum(part.shape[1] for part in event)
    head = [_same(n, 0x40), _varint(at, TIME_BYTES), _same(n, 0x50, SEQUENCE, 0x68, _NEEDS_STATE, 0x5A, size)]
    return [_same(n, 0x0A, size + sum(part.shape[1] for part in head)), *head, *event]


def _same(n: int, *values: int) -> U8:
    return np.broadcast_to(np.array(values, np.uint8), (n, len(values)))


def _varint(values: Ints, size: int) -> U8:
    """`[n, size]` bytes: varints of exactly `size` bytes, zero groups included."""
    shifts = np.arange(size, dtype=np.uint64) * np.uint64(7)
    groups = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    groups[:, :-1] |= np.uint64(0x80)
    return groups.astype(np.uint8)


def _counter(counter: Counter, uuid: int) -> bytes:
    """The packets of one counter."""
    n = len(counter.at)
    if not n:
        return b""
    event = [_same(n, 0x48, _COUNTER, 0x58), _varint(np.full(n, uuid), ID_BYTES), _same(n, 0xF0, 0x01), _varint(counter.value, VALUE_BYTES)]
    return np.hstack(_packet(counter.at, event)).tobytes()
