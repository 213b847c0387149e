"""A run beside what it could be: one HTML file without scripts that loads nothing, and a trace for Perfetto with both."""

from collections.abc import Iterator

import numpy as np

from dysharp.api.explaining import Explanation
from dysharp.api.profile_ranks import Rank
from dysharp.base import ByName, Rows, one_line
from dysharp.profiles.recognise import COPY, EXCHANGES, WAITING
from dysharp.show.markdown import page
from dysharp.show.plots import PALETTE

WIDTH, LINE = 1200, 22
"""Of the drawing, in its own units: all of a run, a line of it."""
HOVER = 2
"""Narrower events are drawn together and have no text of their own."""
MOST_RANKS, MOST_STREAMS = 8, 6
KINDS = ("products", "attention", "exchanges", "waits", "copies", "others")
COLOURS = {kind: PALETTE[i] for kind, i in zip(KINDS, (0, 3, 1, 6, 2, 5), strict=True)}
_OF = {"GEMM": KINDS[0], "grouped GEMM": KINDS[0], "weight gradients": KINDS[0], WAITING: KINDS[3], COPY: KINDS[4]}


def _kind_of_work(operator: str) -> str:
    """Which of `KINDS` an operator is."""
    return _OF.get(operator, "exchanges" if operator in EXCHANGES else "attention" if "attention" in operator else "others")


def render_explanation(done: Explanation, command: str) -> str:
    """The page. Text of files and options is escaped."""
    losses, rows = [loss.text for loss in done.losses], [one for one in done.operators if one.us]
    over = sorted(rows, key=lambda one: (one.expected or one.timed) - one.timed)
    changes = [("as it ran", done.span_us), *done.what_if]
    most = max(us for _, us in changes)
    lines = enumerate(line for rank in done.events[:MOST_RANKS] for line in _lines(rank))
    return page(
        "explain.html", {}, title=f"A run on {done.gpu or 'GPUs'} beside what it could be", losses=losses, done=done, kinds=COLOURS,
        kind=_kind_of_work, rows=[(one, over.index(one)) for one in rows],
        lines=[(name, at * LINE, *_drawn(events, done.span_us, at * LINE)) for at, (name, events) in lines], width=WIDTH, line=LINE,
        changes=[(name, us, WIDTH * us / most) for name, us in changes], layers=_layers(done), command=one_line(command),
    )  # fmt: skip


Event = tuple[float, float, str, str]
"""Start and length in microseconds, operator, text."""


def _lines(rank: Rank) -> Iterator[tuple[str, list[Event]]]:
    """(name, events) of the fullest streams of a rank, as measured and as expected."""
    p = rank.profile
    fullest = sorted(set(p.stream.tolist()), key=lambda one: -p.us[p.stream == one].sum())[:MOST_STREAMS]
    for stream in sorted(fullest):
        own = (p.stream == stream).nonzero()[0].tolist()
        texts = [f"{rank.labels[n] or 'unknown'}: {p.us[n]:,.0f} us at {p.start[n] / 1e3:,.2f} ms" for n in own]
        should = [f", should take {rank.should[n]:,.0f}" if rank.should[n] > 0 else "" for n in own]
        name, both = f"rank {p.rank}, stream {stream}", [(n, text + more) for n, text, more in zip(own, texts, should, strict=True)]
        yield name, [(p.start[n], p.us[n], rank.labels[n], text) for n, text in both]
        yield "expected", [(p.start[n], rank.should[n], rank.labels[n], text) for n, text in both if rank.should[n] > 0]


def _drawn(events: list[Event], span: float, top: float) -> tuple[list[tuple[str, float, float, str]], list[tuple[str, str]]]:
    """(colour, left, width, text) of wide events; (colour, path) of the others, which share a unit of the drawing by their times."""
    scale, wide, thin = WIDTH / span, [], {colour: np.zeros(WIDTH + 1) for colour in COLOURS.values()}
    for start, us, operator, text in events:
        colour, x, w = COLOURS[_kind_of_work(operator)], start * scale, us * scale
        if w >= HOVER:
            wide.append((colour, x, w, text))
        else:
            thin[colour][int(x)] += w
    left, paths = np.arange(WIDTH + 1.0), []
    for colour, widths in thin.items():
        some = np.flatnonzero(widths).tolist()
        paths.append((colour, "".join(f"M{left[n]:.2f} {top + 2}h{widths[n]:.2f}v{LINE - 3}h-{widths[n]:.2f}z" for n in some)))
        left += widths
    return wide, paths


def _layers(done: Explanation) -> list[tuple[float, list[tuple[str, float, float, str]]]]:
    """(microseconds, (text, left, width, colour) by kind of work) of every layer: events of all its streams, one behind the other."""
    most = max((sum(one.values()) - one["whole"] for one in done.layer_us), default=1.0)
    out = []
    for one in done.layer_us:
        parts, x = [], 0.0
        for kind in KINDS:
            us = sum(us for name, us in one.items() if name not in ("whole", "idle") and _kind_of_work(name) == kind)
            parts.append((f"{kind}: {us:,.0f} us", x, WIDTH * us / most, COLOURS[kind]))
            x += WIDTH * us / most
        out.append((one["whole"], parts))
    return out


def trace_of(done: Explanation) -> ByName:
    """A Chrome trace, which ui.perfetto.dev opens: every stream as it was measured, and below it the same kernels as long as they should take."""
    events: Rows = []
    for rank in done.events:
        p, seen = rank.profile, {"pid": rank.profile.rank}
        events.append({"ph": "M", "name": "process_name", "args": {"name": f"rank {p.rank}"}, **seen})
        for stream in sorted(set(p.stream.tolist())):
            for tid, word in ((2 * stream, "measured"), (2 * stream + 1, "expected")):
                events.append({"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": f"stream {stream}: {word}"}, **seen})
                events.append({"ph": "M", "name": "thread_sort_index", "tid": tid, "args": {"sort_index": tid}, **seen})
        for n, (start, us, should, stream) in enumerate(zip(p.start.tolist(), p.us.tolist(), rank.should.tolist(), p.stream.tolist(), strict=True)):
            one = {"ph": "X", "name": p.names[p.name[n]], "ts": start, "args": {"operator": str(rank.labels[n])}, **seen}
            events.append({**one, "cat": TRACED[int(p.what[n])], "tid": 2 * stream, "dur": us})
            if should > 0:
                events.append({**one, "cat": "expected", "tid": 2 * stream + 1, "dur": should})
    return {"deviceProperties": [{"name": done.gpu}], "displayTimeUnit": "ms", "traceEvents": events}


TRACED = ("kernel", "gpu_memcpy", "gpu_memset")
"""Category of an event by `Profile.what`, so that `explain` reads what it wrote."""
