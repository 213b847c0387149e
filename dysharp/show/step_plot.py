"""The pipeline of a training step, drawn: a line for every rank, a colour for every kind of work."""

import re
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dysharp.api.training import Steps
from dysharp.base import PS_PER_US
from dysharp.show.plots import PALETTE, drawn
from dysharp.training.graph import COMPUTE, GATHER, OPTIMIZER, REDUCE, Node, Replay

WORK = ("forward", "backward", "gradient of the input", "weight gradients", "merged pair", "gradients and parameters", "optimizer")
COLOURS = {work: PALETTE[i] for work, i in zip(WORK, (0, 1, 7, 3, 2, 4, 6), strict=True)}
_OF_CELL = dict(zip("FBIW", WORK, strict=False))


def _work_of(node: Node) -> str:
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
            if (work := _work_of(node)) and done.graph.duration[n]:
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
