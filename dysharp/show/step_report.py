"""A training step as one HTML file without scripts that loads nothing: the answer, the pipeline drawn, systems, memory.

The pipeline of a training step, drawn: a line for every rank, a colour for every kind of work.
"""

import re
from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dysharp.api.training import WORDS, Steps
from dysharp.base.errors import one_line
from dysharp.base.units import PS_PER_US, GiB
from dysharp.show.markdown import page
from dysharp.show.plots import PALETTE, drawn
from dysharp.training.graph import COMPUTE, GATHER, OPTIMIZER, REDUCE, Node, Replay

WORK = ("forward", "backward", "gradient of the input", "weight gradients", "merged pair", "gradients and parameters", "optimizer")
COLOURS = dict(zip(WORK, (PALETTE[0], PALETTE[1], PALETTE[7], PALETTE[3], PALETTE[2], PALETTE[4], PALETTE[6]), strict=True))
_OF_CELL = dict(zip("FBIW", WORK, strict=False))


def work_of(node: Node) -> str:
    """The kind of work of a node; "": it is not drawn (sends)."""
    if node.kind == COMPUTE:
        return "merged pair" if "&" in node.name else _OF_CELL[re.findall("[FBIW]", node.name)[0]]
    return {REDUCE: "gradients and parameters", GATHER: "gradients and parameters", OPTIMIZER: "optimizer"}.get(node.kind, "")


def spans(done: Replay) -> dict[str, list[tuple[int, float, float]]]:
    """{kind of work: (rank, start, end)} in ms, in the order of `WORK`. Neighbours of one slot are one span."""
    found: dict[str, list[tuple[int, float, float]]] = {work: [] for work in WORK}
    last = ""
    for work, name, rank, start, end in _nodes(done):
        own = found[work]
        if own and name == last and own[-1][0] == rank and own[-1][2] == start:
            own[-1] = (rank, own[-1][1], end)
        else:
            own.append((rank, start, end))
        last = name
    return {work: own for work, own in found.items() if own}


def _nodes(done: Replay) -> Iterator[tuple[str, str, int, float, float]]:
    for queue in done.graph.queues.values():
        for n in queue:
            node = done.graph.nodes[n]
            if (work := work_of(node)) and done.graph.duration[n]:
                yield work, node.name, node.rank, done.start[n] / PS_PER_US / 1e3, done.end[n] / PS_PER_US / 1e3


def plot_step(steps: Steps, *, ax: Axes | None = None) -> Axes:
    """The pipeline of the fastest system: time (ms) against rank."""
    found, ranks = spans(steps.best.replayed), steps.schedule.ranks
    with drawn(ax, 9.6, 1.4 + 0.28 * ranks) as axes:
        for work, own in found.items():
            thin = work == "gradients and parameters"
            for rank in range(ranks):
                bars = [(start, end - start) for at, start, end in own if at == rank]
                axes.broken_barh(bars, (rank + (0.36 if thin else -0.4), 0.1 if thin else 0.74), facecolors=COLOURS[work], linewidth=0)
        axes.set(yticks=range(ranks), ylim=(ranks - 0.5, -0.5), xlim=(0, steps.best.step_us / 1e3))
        title = f"{steps.model}, {steps.layout.gpus} GPUs, {steps.schedule.name}, {steps.best.system}"
        axes.set(xlabel="time of a step (ms)", ylabel="pipeline rank", title=title)
        keys = [Patch(color=COLOURS[work], label=work) for work in found]
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False)
    return axes


WIDTH, LINE = 1200, 22
"""Of the drawing, in its own units: all of a step, a rank."""
SHARES = dict(zip(WORDS, (PALETTE[0], PALETTE[1], PALETTE[7], PALETTE[4], PALETTE[5], PALETTE[3], PALETTE[6]), strict=True))


def render_steps(steps: Steps, command: str) -> str:
    """The page. Text of files and options is escaped."""
    best, layout = steps.best, steps.layout
    degrees = ", ".join(f"{name} {value}" for name in ("tp", "pp", "vpp", "ep", "cp", "dp") if (value := getattr(layout, name)) > 1)
    return page(
        "step.html", {},
        title=f"A training step of {steps.model} on {layout.gpus} GPUs",
        answer=steps.sentence(),
        facts=(("layout", degrees or "one GPU"), ("stages", layout.stages or "equal chunks"), ("schedule", steps.schedule.name),
               ("micro-batches", f"{layout.micro_batches} of {layout.micro_batch} x {steps.sequence} tokens")),
        best=best,
        drawing={
            "width": WIDTH, "height": LINE * steps.schedule.ranks, "line": LINE, "ranks": range(steps.schedule.ranks), "paths": _paths(steps),
            "ms": best.step_us / 1e3,
        },
        systems=[_system(steps, at) for at in range(len(steps.steps))],
        words=[(name.replace("_", " "), words, SHARES[name]) for name, words in WORDS.items()],
        gains=sorted(steps.gains.items(), key=lambda one: -one[1]),
        memory=_memory(steps),
        notes=[line for line in steps.header if not line.startswith("warning: ")],
        warnings=[line.removeprefix("warning: ") for line in steps.header if line.startswith("warning: ")],
        command=one_line(command),
    )  # fmt: skip


def _paths(steps: Steps) -> list[tuple[str, str, str]]:
    """(kind of work, colour, path) of the fastest system's pipeline. Traffic is a thin line under its rank."""
    scale = WIDTH / (steps.best.step_us / 1e3)
    paths = []
    for work, own in spans(steps.best.replayed).items():
        thin = work == "gradients and parameters"
        top, height = (LINE - 4, 3) if thin else (2, LINE - 7)
        places = ((start * scale, rank * LINE + top, (end - start) * scale) for rank, start, end in own)
        paths.append((work, COLOURS[work], "".join(f"M{x:.2f} {y}h{width:.2f}v{height}h-{width:.2f}z" for x, y, width in places)))
    return paths


def _system(steps: Steps, at: int) -> dict[str, Any]:
    one, most = steps.steps[at], max(step.step_us for step in steps.steps)
    parts, x = [], 0.0
    for name in WORDS:
        width = WIDTH * one.shares[name] * one.step_us / most
        parts.append({"name": name.replace("_", " "), "x": x, "w": width, "share": 100 * one.shares[name], "colour": SHARES[name]})
        x += width
    return {"step": one, "name": f"{one.system}*" if one.dropped_rows else one.system, "best": one is steps.best, "parts": parts}


def _memory(steps: Steps) -> dict[str, Any]:
    names = [name for name in steps.memory.ranks[0].lines if any(rank.lines[name] for rank in steps.memory.ranks)]
    ranks = [
        {"rank": rank.rank, "held": rank.in_flight, "gib": [rank.lines[name] / GiB for name in names], "all": steps.memory.reserved(rank) / GiB}
        for rank in steps.memory.ranks
    ]
    return {"names": names, "ranks": ranks, "peak": steps.memory.peak.rank}
