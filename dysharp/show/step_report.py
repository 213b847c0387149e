"""A training step as one HTML file without scripts that loads nothing: the answer, the pipeline drawn, systems, memory."""

from dysharp.api.training import WORDS, Steps
from dysharp.base import ByName, GiB, one_line
from dysharp.show.markdown import page
from dysharp.show.plots import PALETTE
from dysharp.show.step_plot import COLOURS, spans

WIDTH, LINE = 1200, 22
"""Of the drawing, in its own units: all of a step, a rank."""
SHARES = {word: PALETTE[i] for word, i in zip(WORDS, (0, 1, 7, 4, 2, 5, 3, 6), strict=True)}


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


def _system(steps: Steps, at: int) -> ByName:
    one, most = steps.steps[at], max(step.step_us for step in steps.steps)
    parts, x = [], 0.0
    for name in WORDS:
        width = WIDTH * one.shares[name] * one.step_us / most
        parts.append({"name": name.replace("_", " "), "x": x, "w": width, "share": 100 * one.shares[name], "colour": SHARES[name]})
        x += width
    return {"step": one, "name": f"{one.system}*" if one.dropped_rows else one.system, "best": one is steps.best, "parts": parts}


def _memory(steps: Steps) -> ByName:
    names = [name for name in steps.memory.ranks[0].lines if any(rank.lines[name] for rank in steps.memory.ranks)]
    ranks = [
        {"rank": rank.rank, "held": rank.in_flight, "gib": [rank.lines[name] / GiB for name in names], "all": steps.memory.reserved(rank) / GiB}
        for rank in steps.memory.ranks
    ]
    return {"names": names, "ranks": ranks, "peak": steps.memory.peak.rank}
