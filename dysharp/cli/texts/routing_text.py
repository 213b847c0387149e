"""`dysharp routing`: the layers as plain values, and as a table."""

import dataclasses
from collections.abc import Iterable, Sequence

from dysharp.base import ByName, by_key
from dysharp.cli.flags import numbers_of
from dysharp.show.output import print_lines, print_table
from dysharp.workload.describe import SCHEMES, GpuRow, LayerRow, NodeRow


def counts_of(text: str) -> list[int]:
    """`"8,16"` as GPU counts; raises ConfigError."""
    return numbers_of("--gpus", text, "GPU counts such as 8,16,32")


def routing_dict(source: str, rows: Sequence[LayerRow]) -> ByName:
    """`experts topk tokens` (None where layers differ or it is not known), `layers` one by one, and over all layers by GPU count
    `imbalance` (copies and tokens, largest over mean: mean and max of the layers) and `distinct_gpus` (mean, uniform routing)."""
    by_count = by_key((gpu.n_gpus, gpu) for row in rows for gpu in row.gpus)
    return {
        "source": source, "experts": _common(row.n_experts for row in rows), "topk": _common(row.topk for row in rows),
        "tokens": _common(row.n_tokens for row in rows), "layers": [dataclasses.asdict(row) for row in rows],
        "imbalance": {str(n): _imbalance(gpus) for n, gpus in by_count.items()},
        "distinct_gpus": {
            str(n): {"mean": _mean(g.distinct_gpus for g in gpus), "uniform": _mean(g.distinct_gpus_uniform for g in gpus)}
            for n, gpus in by_count.items()
        },
    }  # fmt: skip


def _common(values: Iterable[int | None]) -> int | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _imbalance(gpus: Sequence[GpuRow]) -> dict[str, float | None]:
    return {
        "copies_max_mean": _mean(g.copies_max_mean for g in gpus), "copies_max_mean_worst": max(g.copies_max_mean for g in gpus),
        "tokens_max_mean": _mean(g.tokens_max_mean for g in gpus),
    }  # fmt: skip


def print_layers(rows: Sequence[LayerRow]) -> None:
    """The answer, one line per layer, a last line with what uniform routing would show, and the meaning of the columns."""

    counts = list(dict.fromkeys(gpu.n_gpus for row in rows for gpu in row.gpus))
    headings = ["\nlayer", "experts\nmax/mean", "\nspread"]
    headings += [heading for n in counts for heading in (f"{n} GPUs\nmax/mean", "distinct\nGPUs")]
    lines = []
    for row in rows:
        by_count = {gpu.n_gpus: gpu for gpu in row.gpus}
        cells = [cell for n in counts for cell in _gpu_cells(by_count.get(n))]
        lines.append(["-" if row.layer is None else str(row.layer), f"{row.max_mean:.2f}", f"{row.cv:.3f}", *cells])
    uniform = {gpu.n_gpus: gpu.distinct_gpus_uniform for row in rows for gpu in row.gpus}
    noise = {row.cv_noise for row in rows}
    lines.append(["uniform", "", _number(noise.pop() if len(noise) == 1 else None, 3)])
    lines[-1] += [cell for n in counts for cell in ("", _number(uniform[n], 2))]
    print_lines([_answer(rows), "", *dict.fromkeys(_source_line(row) for row in rows)])
    print_table(headings, lines, left=0, gap=1, fold=False)
    print_lines(
        [
            "experts max/mean: tokens of the busiest expert over the mean; spread: standard deviation over the mean",
            "GPUs max/mean: (token, expert) rows of the busiest GPU over the mean",
            "distinct GPUs: mean number of GPUs that one token is sent to, its own GPU included",
            *(f"placement: {note}" for note in dict.fromkeys(gpu.note for row in rows for gpu in row.gpus if gpu.note)),
        ]
    )


def _answer(rows: Sequence[LayerRow]) -> str:
    """How unequal the load is: the range over layers, of experts and of GPUs."""
    experts = [row.max_mean for row in rows]
    words = [f"The busiest expert of a layer has {_range(experts)} times the mean"]
    for n in dict.fromkeys(gpu.n_gpus for row in rows for gpu in row.gpus):
        words.append(f"the busiest of {n} GPUs {_range([gpu.copies_max_mean for row in rows for gpu in row.gpus if gpu.n_gpus == n])} times")
    return "; ".join(words) + "."


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def print_nodes(rows: Sequence[NodeRow]) -> None:
    """Load of NVLink and NICs, one line per number of GPUs and scheme; nothing without rows."""

    if not rows:
        return
    print_lines(["", f"Dispatch over NVLink domains of {rows[0].domain_gpus} GPUs, rows per token"])
    cells = [
        (
            *(str(row.n_gpus), SCHEMES[row.scheme], f"{row.domains_per_token:.2f}", _number(row.domains_uniform, 2)),
            *(f"{row.nvlink.rows_out:.2f}", f"{max(row.nvlink.out_max_mean, row.nvlink.in_max_mean):.2f}"),
            *(f"{row.nic.rows_out:.2f}", f"{row.nic.rows_in:.2f}", f"{row.nic.out_max_mean:.2f}", f"{row.nic.in_max_mean:.2f}"),
        )
        for row in rows
    ]
    headings = ("\nGPUs", "\nscheme", "\ndomains", "\nuniform", "\nNVLink", "busiest\nx mean", "NIC\nout", "NIC\nin", "out\nx mean", "in\nx mean")
    print_table(headings, cells, left=0, text=("\nscheme",), gap=1)
    print_lines(
        [
            "domains: with experts of a token, its own domain included; uniform: the same under uniform routing, by closed form",
            "two hops: once per remote domain by NIC, then by NVLink; x mean: the busiest GPU over the mean",
            "Combine mirrors Dispatch: what goes out there comes in here",
        ]
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _source_line(row: LayerRow) -> str:
    topk = "" if row.topk is None else f", top-{row.topk}"
    tokens = "" if row.n_tokens is None else f", {row.n_tokens} tokens"
    return f"{row.source}: {row.n_experts} experts{topk}{tokens}"


def _gpu_cells(gpu: GpuRow | None) -> tuple[str, str]:
    if gpu is None:
        return "-", "-"
    return f"{gpu.copies_max_mean:.2f}", _number(gpu.distinct_gpus, 2)
