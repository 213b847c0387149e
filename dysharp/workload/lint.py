"""`lint`: what a recording or a file of counts says about load, repetition and EPLB, with one line of advice each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dysharp.base import F64, I64, ConfigError, Ints, Numbers, frozen
from dysharp.workload.counts import load_counts
from dysharp.workload.deal import deal
from dysharp.workload.placement import auto, eplb, replica_loads, replica_slots
from dysharp.workload.routing import Placement, count_ids, gpus_of, max_over_mean, variation
from dysharp.workload.traces import Recording, load_trace

EXTRA_SLOTS = (0, 1, 2, 4)
"""Slots per GPU with which EPLB is tried, beyond the slots that the experts need. 0: EPLB moves experts and copies none."""
PAYS = 0.05
"""EPLB pays where it takes this part from the rows of the busiest GPU."""
MOST = 0.75
"""The advice names the fewest slots that save this part of what the best number of slots saves."""
UNEVEN = 1.2
"""A busiest GPU above this part of the mean is uneven."""
REPEATED = 0.1
"""Part of the tokens above which repeated tokens are worth a look."""
FEW = 20
"""Rows per expert below which an expert without a row may be chance."""


@frozen
class _EplbRow:
    """EPLB with `n_slots` expert slots in one layer: rows of the busiest GPU before and after."""

    n_slots: int
    rows_before: float
    rows_after: float


@frozen
class _LayerLint:
    """One layer. Values of tokens are None where only counts per expert are known."""

    layer: int
    n_rows: int
    n_tokens: int | None
    """Complete tokens."""
    n_incomplete: int | None
    """Tokens without a complete choice in this layer."""
    n_distinct: int | None
    """Distinct sets of experts among the complete tokens."""
    dead: Numbers
    """Experts without a row."""
    expert_max_mean: float
    spread: float
    """Standard deviation of the rows per expert over their mean."""
    spread_by_chance: float | None
    """The same of uniform routing with as many tokens."""
    rows_per_gpu: Numbers
    """Rows of each GPU under placement `auto`."""
    tokens_per_gpu: Numbers | None
    """Tokens that each GPU receives; a GPU counts each token once."""
    gpu_max_mean: float
    """Rows of the busiest GPU over the mean."""
    eplb: tuple[_EplbRow, ...]


@frozen
class Reading:
    """How the recording fills `tokens` tokens on every GPU."""

    tokens: int
    n_distinct: int
    """Distinct recorded tokens among the dealt ones."""
    n_sharing: int
    """GPUs that read a recorded token that another GPU reads too."""


@frozen
class _LintLine:
    """One line of the report. `level`: "ok" or "look"."""

    name: str
    level: str
    text: str
    advice: str


@frozen
class Lint:
    """The report on one file."""

    source: str
    n_gpus: int
    n_experts: int
    topk: int | None
    n_repeated: int | None
    """Tokens that chose in all layers the same experts as an earlier token."""
    sequences: Numbers | None
    """Lengths of the recorded sequences. A dump with one file per rank has one sequence per rank."""
    reading: Reading | None
    layers: tuple[_LayerLint, ...]
    findings: tuple[_LintLine, ...]


def lint(source: str, n_gpus: int = 8, *, layer: int | None = None, tokens: int | None = None, model: str = "", seed: int = 0) -> Lint:
    """Check a trace (file or packaged name) or a CSV of counts.

    `layer` None: all layers. `tokens`: tokens per GPU to deal, for the repetition; None: as many as the recording has.
    `model`: of a CSV with several models. Raises ConfigError as `load_trace` and `load_counts`.
    """
    for name, value in (("gpus", n_gpus), ("tokens", tokens)):
        if value is not None and not 1 <= value <= 1 << 20:
            raise ConfigError(f"lint: found {value} {name}, expected 1 to {1 << 20}")
    if source.endswith(".csv"):
        return _of_counts(source, n_gpus, layer, model)
    trace = load_trace(source.removeprefix("trace:"))
    rows = [trace.row_of(layer)] if layer is not None else [r for r in range(len(trace.layers)) if trace.recorded(r).any()]
    if not rows or not trace.recorded(rows[0]).any():
        raise ConfigError(f"trace {trace.name}: no layer has a complete token")
    layers = tuple(_of_layer(trace, row, n_gpus) for row in rows)
    sequences = None if trace.seq_len is None else tuple(trace.seq_len.tolist())
    reading = _reading(trace, rows[0], n_gpus, tokens, seed)
    repeated = _repeated(trace.expert)
    findings = (
        *_tokens_findings(layers, sequences),
        _dead(layers, trace.n_experts),
        _repetition(trace, repeated, reading, n_gpus),
        _imbalance(layers),
        _eplb(layers, trace.n_experts, n_gpus),
    )
    return Lint(source, n_gpus, trace.n_experts, trace.topk, repeated, sequences, reading, layers, findings)


def _of_counts(source: str, n_gpus: int, layer: int | None, model: str) -> Lint:
    table = load_counts(Path(source.removeprefix("counts:")), model)
    placed = auto(table.n_experts, n_gpus)
    rows = range(len(table.layers)) if layer is None else [table.row(layer, placed)]
    layers = tuple(_layer(table.layers[r], table.count[r], table.count[r], table.count[r], placed) for r in rows)
    findings = (_dead(layers, table.n_experts), _imbalance(layers), _eplb(layers, table.n_experts, n_gpus))
    return Lint(source, n_gpus, table.n_experts, None, None, None, None, layers, findings)


# ---- values ----------------------------------------------------------------------------------------------------------


def _of_layer(trace: Recording, row: int, n_gpus: int) -> _LayerLint:
    expert = trace.expert[row][trace.recorded(row)].astype(np.int32)
    placed = auto(trace.n_experts, n_gpus)
    half = len(expert) // 2
    early, late = (count_ids(part, trace.n_experts) for part in (expert[:half], expert[half:]))
    received = gpus_of(replica_slots(expert, placed, trace.n_experts), placed).sum(axis=0)
    layer = _layer(trace.layers[row], count_ids(expert, trace.n_experts), early if half else late, late, placed)
    return replace(
        layer, n_tokens=len(expert), n_incomplete=trace.n_tokens - len(expert), n_distinct=len(np.unique(np.sort(expert, axis=1), axis=0)),
        spread_by_chance=((1.0 - trace.topk / trace.n_experts) / (len(expert) * trace.topk / trace.n_experts)) ** 0.5,
        tokens_per_gpu=tuple(received.tolist()),
    )  # fmt: skip


def _layer(layer: int, count: I64, early: I64, late: I64, placed: Placement) -> _LayerLint:
    """What counts say. `early`: the counts by which EPLB places. `late`: the counts on which the placement is judged."""
    rows = _rows_per_gpu(count, placed)
    before = float(_rows_per_gpu(late, placed).max())
    per_gpu = -(-count.size // placed.n_gpus)
    tried = []
    for extra in EXTRA_SLOTS:
        n_slots = (per_gpu + extra) * placed.n_gpus
        after = float(_rows_per_gpu(late, eplb(early, placed.n_gpus, n_slots)).max())
        tried.append(_EplbRow(n_slots, before, after))
    dead, held = np.flatnonzero(count == 0), np.rint(rows).astype(np.int64)
    means = max_over_mean(count), variation(count), None, tuple(held.tolist()), None, max_over_mean(rows)
    return _LayerLint(layer, int(count.sum()), None, None, None, tuple(dead.tolist()), *means, tuple(tried))


def _rows_per_gpu(count: I64, placed: Placement) -> F64:
    return np.asarray(replica_loads(count, placed).reshape(placed.n_gpus, -1).sum(axis=1))


def _repeated(expert: Ints) -> int:
    """Tokens of `[layers, tokens, topk]` whose sets of experts in all layers equal the sets of an earlier token."""
    tokens = np.ascontiguousarray(np.sort(expert, axis=2).transpose(1, 0, 2).reshape(expert.shape[1], -1))
    whole = tokens.view(np.dtype((np.void, tokens.dtype.itemsize * tokens.shape[1]))).ravel()
    return len(whole) - len(np.unique(whole))


def _reading(trace: Recording, row: int, n_gpus: int, tokens: int | None, seed: int) -> Reading | None:
    """How `deal` would read this layer. None: the recording has fewer tokens than GPUs."""
    keep = trace.recorded(row)
    tokens = int(keep.sum()) // n_gpus if tokens is None else tokens
    if not tokens:
        return None
    # A recording of token numbers instead of experts: `deal` then says which token goes where.
    number = np.where(keep, np.arange(trace.n_tokens), -1).astype(np.int32)
    numbers = Recording(trace.name, number[None, :, None], (0,), trace.seq_len, trace.n_tokens)
    dealt = deal(numbers, 0, n_gpus, tokens, "in-order", np.random.default_rng(seed))[0].reshape(n_gpus, tokens)
    readers = np.zeros(trace.n_tokens, np.int64)
    own = [np.unique(part) for part in dealt]
    for part in own:
        readers[part] += 1
    return Reading(tokens, int((readers > 0).sum()), sum(bool((readers[part] > 1).any()) for part in own))


# ---- findings --------------------------------------------------------------------------------------------------------


def _tokens_findings(layers: Sequence[_LayerLint], sequences: Numbers | None) -> tuple[_LintLine, _LintLine]:
    worst = max(layers, key=lambda one: max(one.tokens_per_gpu or (0,)))
    got = worst.tokens_per_gpu or (0,)
    mean = sum(got) / len(got)
    text = f"{min(got)} to {max(got)}, mean {mean:.0f}; most on GPU {got.index(max(got))}, layer {worst.layer}"
    uneven = max(got) > UNEVEN * mean
    received = _LintLine(
        "tokens per rank",
        "look" if uneven else "ok",
        text,
        f"the busiest GPU receives {max(got) / mean:.2f}x the mean: its links and GEMMs end last" if uneven else "GPUs receive nearly equally many",
    )
    lost = max(layers, key=lambda one: one.n_incomplete or 0)
    n_lost = lost.n_incomplete or 0
    held = f"{lost.n_tokens} complete tokens" if n_lost else f"{lost.n_tokens} tokens, all complete"
    if n_lost:
        held += f", {n_lost} without a complete choice in layer {lost.layer}"
    if sequences is not None:
        held += f"; {len(sequences)} sequences or ranks of {min(sequences)} to {max(sequences)} tokens"
    advice = "incomplete tokens are left out; record them again if they matter" if n_lost else "nothing is left out"
    return received, _LintLine("recording", "look" if n_lost else "ok", held, advice)


def _dead(layers: Sequence[_LayerLint], n_experts: int) -> _LintLine:
    worst = max(layers, key=lambda one: len(one.dead))
    n_dead = sum(len(one.dead) for one in layers)
    if not n_dead:
        return _LintLine("dead experts", "ok", "none", "every expert has rows in every layer")
    shown = ", ".join(map(str, worst.dead[:6])) + (", ..." if len(worst.dead) > 6 else "")
    text = f"{n_dead} of {len(layers) * n_experts}, most in layer {worst.layer}: {len(worst.dead)} ({shown})"
    expected = worst.n_rows / n_experts
    few = f"only {expected:.1f} rows per expert are recorded: record more tokens before you trust the zeros"
    return _LintLine("dead experts", "look", text, few if expected < FEW else "this text never uses them: their slots can hold copies of hot experts")


def _repetition(trace: Recording, repeated: int, reading: Reading | None, n_gpus: int) -> _LintLine:
    n_tokens, n_layers = trace.n_tokens, len(trace.layers)
    text = f"{n_tokens - repeated} of {n_tokens} tokens are distinct in their choices over {n_layers} layer{'s' * (n_layers != 1)}"
    if reading is None:
        return _LintLine("repetition", "look", text, f"fewer tokens than the {n_gpus} GPUs: every GPU reads the same; record more")
    text += f"; at {reading.tokens} tokens per GPU, {reading.n_sharing} of {n_gpus} GPUs read tokens that another GPU reads too"
    if n_gpus * reading.tokens > n_tokens:
        advice = f"GPUs that read the same tokens are loaded alike: record more, or simulate at most {n_tokens // n_gpus} tokens per GPU"
        return _LintLine("repetition", "look", text, advice)
    if reading.n_sharing:
        return _LintLine("repetition", "look", text, "whole sequences do not fill the GPUs: add :window=mixed to read each token once")
    if repeated > REPEATED * n_tokens and n_layers > 1:
        return _LintLine("repetition", "look", text, "repeated tokens make a few experts hot: leave padding and repeated prompts out")
    return _LintLine("repetition", "ok", text, "GPUs read different tokens")


def _imbalance(layers: Sequence[_LayerLint]) -> _LintLine:
    worst = max(layers, key=lambda one: one.gpu_max_mean)
    hottest = max(layers, key=lambda one: one.expert_max_mean)
    middle = float(np.median([one.gpu_max_mean for one in layers]))
    text = (
        f"GPUs {worst.gpu_max_mean:.2f} max/mean in layer {worst.layer} (median layer {middle:.2f}), "
        f"experts {hottest.expert_max_mean:.2f} in layer {hottest.layer}"
    )
    chance = worst.spread_by_chance
    if chance is not None and worst.spread < 1.5 * chance:
        return _LintLine("imbalance", "ok", text, f"as even as chance: spread {worst.spread:.3f}, by chance {chance:.3f}")
    if worst.gpu_max_mean > UNEVEN:
        return _LintLine("imbalance", "look", text, f"GEMMs of layer {worst.layer} take about {worst.gpu_max_mean:.2f}x those of a balanced layer")
    return _LintLine("imbalance", "ok", text, "experts differ, but GPUs hold enough of them to even out")


def _eplb(layers: Sequence[_LayerLint], n_experts: int, n_gpus: int) -> _LintLine:
    """The fewest slots near the best, by the rows of the busiest GPU summed over layers: layers run one after another."""
    before = sum(one.eplb[0].rows_before for one in layers)
    saved = [1.0 - sum(one.eplb[i].rows_after for one in layers) / before for i in range(len(EXTRA_SLOTS))]
    slots = [row.n_slots for row in layers[0].eplb]
    tried = ", ".join(f"{n} slots {-100 * part:+.0f} %" for n, part in zip(slots, saved, strict=True))
    judged = "" if layers[0].n_tokens is None else "; placed by the first half of the tokens, judged on the second"
    text = f"rows (not time) of the busiest GPU: {before:.0f} as placed; {tried}{judged}"
    if max(saved) < PAYS:
        return _LintLine("EPLB", "ok", text, f"EPLB does not pay: it saves less than {100 * PAYS:.0f} %")
    best = next(i for i, part in enumerate(saved) if part >= max(PAYS, MOST * max(saved)))
    kind = "no copies, only other places" if slots[best] == n_experts else f"{slots[best] // n_gpus} expert slots per GPU"
    return _LintLine("EPLB", "look", text, f"EPLB pays: --placement eplb:slots={slots[best]} ({kind})")
