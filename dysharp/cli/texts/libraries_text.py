"""`dysharp advise MODEL --libraries` on one screen."""

from collections.abc import Sequence

from dysharp.base import Texts
from dysharp.cli.texts.advice_text import table, wrapped
from dysharp.planning.advice.libraries import Call, LibraryAdvice, LibraryCell


def screen(done: LibraryAdvice) -> list[str]:
    """The answer, a line per machine, number of GPUs and batch, and what the numbers rest on."""
    several = len({cell.cluster for cell in done.cells}) > 1
    heads = (*(("cluster",) if several else ()), "GPUs", "nodes", "tokens", "fastest", "us", "error bar", "next fastest, us (=: error bars overlap)")
    rows = [(*((cell.cluster,) if several else ()), *_cells(cell)) for cell in done.cells]
    lines = [*wrapped([_answer(done)]), "", f"{done.model}: us per round trip, {', '.join(dict.fromkeys(cell.cluster for cell in done.cells))}"]
    lines += ["", *table(heads, rows, left=1, last=True), *wrapped(done.notes)]
    return [*lines, *wrapped([_without(done.cells)]), "More: --json (every library, its bar, and why a library has no kernel)"]


def _cells(cell: LibraryCell) -> Texts:
    if not cell.calls:
        return str(cell.gpus), str(cell.nodes), str(cell.tokens), "none has a kernel", "-", "-", ""
    first, ties = cell.calls[0], cell.ties()
    bar = first.bar()
    shown = "-" if bar is None else f"{bar[0]:.0f} to {bar[1]:.0f}{'' if first.interval is None or first.interval.near else '~'}"
    others = ", ".join(f"{'=' if call in ties else ''}{_name(call)} {call.us:.0f}" for call in cell.calls[1:4])
    return str(cell.gpus), str(cell.nodes), str(cell.tokens), _name(first), f"{first.us:.0f}", shown, others


def _name(call: Call) -> str:
    """ "deepep-v2 LL", "nccl-ep": the mode where a library has two."""
    return f"{call.library.removesuffix(' normal')}{'*' if call.pool else ''}"


def _answer(done: LibraryAdvice) -> str:
    """Which library wins where, from the smallest batch to the largest."""
    parts = []
    for cluster, gpus in dict.fromkeys((cell.cluster, cell.gpus) for cell in done.cells):
        cells = [cell for cell in done.cells if (cell.cluster, cell.gpus) == (cluster, gpus) and cell.calls]
        runs: list[tuple[str, int]] = []
        for cell in cells:
            name = _name(cell.calls[0])
            if not runs or runs[-1][0] != name:
                runs.append((name, cell.tokens))
        shown = ", ".join(f"{name} from {tokens} tokens" for name, tokens in runs) or "no library has a kernel"
        parts.append(f"{gpus} GPUs of {cluster}: {shown}")
    return f"Fastest: {'; '.join(parts)}."


def _without(cells: Sequence[LibraryCell]) -> str:
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        for library, why in cell.without.items():
            names = reasons.setdefault(why, [])
            names += [] if library.removesuffix(" normal") in names else [library.removesuffix(" normal")]
    return "Not run: " + ("; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items()) or "none")
