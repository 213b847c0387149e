"""Kineto and torch.profiler JSON, read as a stream: memory grows with the events of the GPU, not with the file.

A file is an object with `traceEvents` or a list of events, as text or gzip. Of each event the name, category, times and a few arguments are kept;
events without a finite time and duration are counted and left out. Times are microseconds from the first kernel.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from dysharp.base import F64, ByName, ConfigError, Ints, Numbers, Tally, Texts, frozen, open_regular

CHUNK = 1 << 22
MOST_EVENT = 1 << 26
"""Bytes of text at a time, and of one value of a profile at most."""
MOST_TEXT = 1 << 34
"""Bytes of text of a file, so that a small gzip file cannot keep a machine busy for hours."""
MOST_US = 10**18
"""Microseconds of a clock: one that begins in 1970 has 2e15."""
ON_GPU = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
LAUNCHES = ("cuda_runtime", "cuda_driver")
SLEEP = "<built-in function sleep>"
STANDS_US = 100
"""A call of the CUDA runtime that takes as long launches nothing meanwhile: a launch takes 5 us."""
GROUP = "Process Group Ranks"
NCCL = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", GROUP)
"""Arguments of a kernel of NCCL that PyTorch names."""


@frozen
class Call:
    """An operator of the framework on the host: its name, and shapes and types of its inputs."""

    name: str
    shapes: tuple[Numbers, ...]
    types: Texts


@dataclass(slots=True)
class Profile:
    """One rank of a run. Arrays have an entry per event of the GPU, by their start.

    `start`, `us`: microseconds. `name`: number in `names`. `what`: 0 kernel, 1 copy, 2 fill. `stream`: number of a stream. `launched`: end of the
    launch on the host, nan where it is not known, and `by` its thread. `call`: number in `calls`, -1 where it is not known. `stands`: `[calls, 3]`
    start, end and thread of calls in which the host stands, `stands_in` their names.
    """

    path: str
    gpu: str
    n_sms: int
    rank: int
    ranks: int
    nccl: str
    names: list[str]
    start: F64
    us: F64
    name: Ints
    what: Ints
    stream: Ints
    launched: F64
    by: F64
    call: Ints
    calls: list[Call]
    collectives: dict[int, ByName]
    """Number of an event -> what PyTorch says of its collective."""
    stands: F64
    stands_in: list[str]
    steps: int
    """Iterations that the profiler marks; 0 where it marks none."""
    left_out: int
    cut: bool
    """The file ends before its events do."""

    @property
    def span(self) -> float:
        """Microseconds from the first event of the GPU to the end of the last."""
        return float((self.start + self.us).max() - self.start.min())


@dataclass(slots=True)
class _Kept:
    """What is kept while a file is read. `times`: start and duration of every event; `numbers`: `[events]` name, kind, stream, launch, call."""

    times: array[float] = field(default_factory=lambda: array("d"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    names: Tally = field(default_factory=dict)
    streams: dict[tuple[str, str], int] = field(default_factory=dict)
    launched: dict[int, tuple[float, int]] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    collectives: dict[int, ByName] = field(default_factory=dict)
    stands: list[tuple[float, float, int, str]] = field(default_factory=list)
    steps: set[str] = field(default_factory=set)
    left_out: int = 0

    def take(self, event: Any) -> None:
        """Keep what is needed of an event."""
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        kind, args, name = str(event.get("cat")), _dict(event.get("args")), str(event.get("name"))
        if kind == "cpu_op":
            if (number := _whole(args.get("External id"))) >= 0 and (dims := args.get("Input Dims", args.get("Input dims"))) is not None:
                types = args.get("Input type")
                self.calls[number] = Call(name, _shapes(dims), tuple(map(str, types)) if isinstance(types, list) else ())
            return
        if kind == "user_annotation" and name.startswith("ProfilerStep"):
            self.steps.add(name)
        host = kind in LAUNCHES or name == SLEEP
        if kind not in ON_GPU and not host:
            return
        start, us = _number(event.get("ts")), _number(event.get("dur"))
        if not (abs(start) < MOST_US and 0 <= us < MOST_US):
            self.left_out += 1
            return
        launch, where = _whole(args.get("correlation")), (str(event.get("pid")), str(args.get("stream", event.get("tid"))))
        line = self.streams.setdefault(where, len(self.streams))  # a stream of the GPU, or a thread of the host
        if host and us >= STANDS_US:
            self.stands.append((start, start + us, line, name))
        if kind in LAUNCHES:
            self.launched[launch] = start + us, line
        if host:
            return
        if named := {key: args[key] for key in NCCL if key in args}:
            self.collectives[len(self.times) // 2] = named
        self.times.extend((start, us))
        self.numbers.extend((self.names.setdefault(name, len(self.names)), ON_GPU[kind], line, launch, _whole(args.get("External id"))))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else -1


def _shapes(dims: Any) -> tuple[Numbers, ...]:
    """Shapes of inputs; () for what is no tensor."""
    each = dims if isinstance(dims, list) else []
    return tuple(tuple(one) if isinstance(one, list) and all(_whole(n) >= 0 for n in one) else () for one in each)


def read_profile(path: str | Path) -> Profile:
    """The profile of one rank. Raises ConfigError for a file that is none, or that has no event of a GPU."""
    file = Path(path)
    kept, head = _Kept(), {}
    try:
        with open_regular(file) as raw:
            plain = raw.read(2) != b"\x1f\x8b"
            raw.seek(0)
            stream: IO[bytes] = raw if plain else gzip.open(raw)  # type: ignore[assignment]  # noqa: SIM115  closes with `raw`
            for key, value in _Scanner(stream, str(file)).values():
                kept.take(value) if key is None else head.update({key: value})
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    if not kept.times:
        calls = f" in {len(kept.calls)} operators of the host" if kept.calls else ""
        raise ConfigError(f"{file}: found no kernel of a GPU{calls}, expected a profile of torch.profiler with ProfilerActivity.CUDA")
    what, lines = np.frombuffer(kept.numbers, np.int64).reshape(-1, 5)[:, 1:3].T
    gpus = {pid for (pid, _), at in kept.streams.items() if at in lines[what == 0]}  # a copy may stand on another process
    if len(gpus) > 1:
        raise ConfigError(f"{file}: found kernels of {len(gpus)} GPUs, expected one GPU a file")
    if not any(kept.times[1::2]):
        raise ConfigError(f"{file}: found {len(kept.times) // 2} events of a GPU without a duration, expected a profile with times")
    return _profile(str(file), kept, head)


def _profile(path: str, kept: _Kept, head: ByName) -> Profile:
    times, numbers = np.frombuffer(kept.times, np.float64).reshape(-1, 2), np.frombuffer(kept.numbers, np.int64).reshape(-1, 5)
    order = np.argsort(times[:, 0], kind="stable")
    start, us, name, what, stream, launch, external = *times[order].T, *numbers[order].T
    places = {number: at for at, number in enumerate(kept.calls)}
    device, run = _first(head.get("deviceProperties")), _dict(head.get("distributedInfo"))
    at = {int(old): new for new, old in enumerate(order)}
    launched, by = np.array([kept.launched.get(int(one), (math.nan, -1)) for one in launch]).T
    call = np.array([places.get(int(one), -1) for one in external], np.int64)
    return Profile(
        path=path, gpu=str(device.get("name") or ""), n_sms=max(0, _whole(device.get("numSms"))), rank=max(0, _whole(run.get("rank"))),
        ranks=max(1, _whole(run.get("world_size"))), nccl=str(run.get("nccl_version") or ""), names=list(kept.names), start=start - start[0], us=us,
        name=name, what=what, stream=np.unique(stream, return_inverse=True)[1], launched=launched - start[0], by=by, call=call,
        calls=list(kept.calls.values()), steps=len(kept.steps), collectives={at[number]: named for number, named in kept.collectives.items()},
        stands=np.array([one for *one, _ in kept.stands]).reshape(-1, 3) - (start[0], start[0], 0), stands_in=[name for *_, name in kept.stands],
        left_out=kept.left_out, cut=bool(head.get("")),
    )  # fmt: skip


def _dict(value: Any) -> ByName:
    return value if isinstance(value, dict) else {}


def _first(value: Any) -> ByName:
    return _dict(value[0]) if isinstance(value, list) and value else {}


class _Scanner:
    """Values of a JSON text one at a time: (None, event) of `traceEvents`, (key, value) of the rest; ("", True) where the text ends early."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self.stream, self.where = stream, where
        self.text, self.at, self.read, self.ended = "", 0, 0, False
        self.decode = json.JSONDecoder(strict=False).raw_decode
        self.characters = codecs.getincrementaldecoder("utf-8")("replace")

    def values(self) -> Iterator[tuple[str | None, Any]]:
        """Raises ConfigError for what is no JSON."""
        first = self._next()
        if first == "[":
            yield from self._events()
        elif first != "{":
            raise ConfigError(f"{self.where}: found {first[:1]!r} first, expected the JSON of a profile")
        else:
            yield from self._members()

    def _members(self) -> Iterator[tuple[str | None, Any]]:
        while (mark := self._next()) not in ("}", ""):
            if mark == ",":
                continue
            self.at -= 1
            key = self._value()
            if self._next() != ":":
                raise ConfigError(f"{self.where}: malformed JSON near byte {self.read}, expected ':' behind a key")
            if key == "traceEvents" and self._next() == "[":
                yield from self._events()
            else:
                yield str(key), self._value()
        if not mark:
            yield "", True

    def _events(self) -> Iterator[tuple[str | None, Any]]:
        number = 0
        while (mark := self._next()) != "]":
            if mark == ",":
                continue
            self.at -= 1
            try:
                event = mark and self._value()
            except ConfigError:
                if not (self.ended and number):
                    raise
                mark = ""  # a run that was stopped while it wrote
            if not mark:
                self.at = len(self.text)
                yield "", True
                return
            number += 1
            yield None, event

    def _next(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            while self.at < len(self.text):
                self.at += 1
                if not (found := self.text[self.at - 1]).isspace():
                    return found
            if not self._more():
                self.at += 1
                return ""

    def _value(self) -> Any:
        self._next()
        self.at -= 1
        while True:
            try:
                value, end = self.decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                long = len(self.text) - self.at > MOST_EVENT
                if isinstance(error, RecursionError) or long or not self._more():
                    what = "a value too deep or too long" if isinstance(error, RecursionError) or long else f"malformed JSON ({error})"
                    raise ConfigError(f"{self.where}: {what} near byte {self.read}, expected events of a profile") from None
                continue
            if end < len(self.text) or isinstance(value, (dict, list, str)) or not self._more():  # a number may go on behind the end
                self.at = end
                return value

    def _more(self) -> bool:
        """Read on, and drop what is done."""
        data: bytes | None = b"" if self.ended else self.stream.read(CHUNK)
        if data is None:  # a file of /proc that waits for what the kernel says next
            raise ConfigError(f"{self.where}: cannot be read: found no data and no end, expected a file that does not wait")
        self.ended, self.read = not data, self.read + len(data)
        if self.read > MOST_TEXT:
            raise ConfigError(f"{self.where}: found more than {MOST_TEXT >> 30} GiB of text, expected a shorter profile")
        self.text, self.at = self.text[self.at :] + self.characters.decode(data), 0
        return bool(data)
