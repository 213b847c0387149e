"""From the arrays of a dump to one checked `Recording`, with `Hints`: numbers that the user gives because the dump does not contain them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dysharp.base import F64, I32, I64, Array, ConfigError, Floats, Ints, Numbers, Reals, Texts, frozen
from dysharp.workload.importers.dump import Dump
from dysharp.workload.npz import MAX_BYTES
from dysharp.workload.traces import Recording, check_weights, checked_ids


@frozen
class Hints:
    """Numbers from the user. None: the dump contains the number, or the format does not need it."""

    experts: int | None = None
    """Routed experts of a layer."""
    topk: int | None = None
    """Experts per token."""
    n_layers: int | None = None
    """Length of the layer axis, for flat data."""
    most_layers: int | None = None
    """Layers of the whole model, those of MTP included. A dump with more layers is refused."""
    layers: Numbers | None = None
    """The layers to keep, by the numbers of the file. None: all layers."""
    tokens: int | None = None
    """For counts: the number of tokens to draw."""
    seed: int = 0
    """For counts: the seed of the draw."""
    model: str = ""
    """For a CSV of counts of several models: the model to take."""
    max_bytes: int = MAX_BYTES
    """Larger arrays are refused before they are read."""

    def __post_init__(self) -> None:
        for name in ("experts", "topk", "n_layers", "tokens", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"import: found {name} {value}, expected at least 1")
        if self.seed < 0:
            raise ConfigError(f"import: found seed {self.seed}, expected 0 or more")

    def need(self, name: str, where: str, beside: str = "") -> int:
        """The value of the hint `name`. Raises ConfigError that names the option if the user gave none."""
        value: int | None = getattr(self, name)
        if value is None:
            what = {"experts": "the number of experts", "topk": "top-k", "n_layers": "the number of layers"}[name]
            or_model = "" if name == "n_layers" else " or --model NAME"
            raise ConfigError(f"{where}: {what} is not in the file{beside}, expected --{name.replace('_', '-')} N{or_model}")
        return value


@frozen
class Piece:
    """Some tokens of a dump."""

    where: str
    """The place in the file, for messages."""
    expert: Ints
    """[layers, tokens, topk] integers, -1 = none."""
    weight: Floats | None = None
    """Gate weights in the shape of `expert`, None = not recorded."""
    seq_len: Numbers | None = None
    """Lengths of the sequences. Their sum is the number of tokens. None: not known."""


@frozen
class Imported:
    """The result of an import. `notes`: assumptions of the import, one line each."""

    trace: Recording
    format: str
    notes: Texts


def imported(
    format_name: str, dump: Dump, pieces: Sequence[Piece], hints: Hints, n_experts: int = 0, *, layers: Numbers | None = None,
    notes: Texts = (),
) -> Imported:  # fmt: skip
    """The checked recording of `pieces`, joined along the tokens, without layers that route nothing.

    `n_experts` 0: as `hints` say. `layers`: the layer numbers of the layer axis. None: positions in the file. Raises ConfigError that names piece,
    layer, row and column.
    """
    first, n_experts = pieces[0], n_experts or hints.need("experts", str(dump.path))
    if n_experts > 1 << 16:
        raise ConfigError(f"{first.where}: found {n_experts} experts, expected at most {1 << 16}")
    n_layers, n_tokens, topk = first.expert.shape
    if hints.most_layers is not None and n_layers > hints.most_layers:
        found = f"{n_layers} layers and {n_tokens} tokens"
        raise ConfigError(f"{first.where}: found {found}, expected [tokens, layers, topk] with at most the {hints.most_layers} layers of the model")
    for piece in pieces:
        if (piece.expert.shape[0], piece.expert.shape[2]) != (n_layers, topk):
            raise ConfigError(f"{piece.where}: found {_sizes(piece)}, expected {_sizes(first)} as in {first.where}")
        if (piece.weight is None) != (first.weight is None):
            raise ConfigError(f"{piece.where}: gate weights here or in {first.where}, expected them in both or in none")
    if topk > n_experts:
        raise ConfigError(f"{first.where}: found top-{topk}, expected at most the {n_experts} experts")
    numbers = tuple(range(n_layers)) if layers is None else layers
    if layers is None:
        notes = (*notes, "layers are numbered by their position in the file")
    kept, silent = _speaking(pieces, topk)
    if silent:
        notes = (*notes, f"layers {', '.join(str(numbers[i]) for i in silent[:20])} route nothing (dense layers): left out")
    numbers, rows = _chosen(first.where, tuple(numbers[i] for i in kept), kept, hints.layers)
    ids, weights = [], []
    for piece in pieces:
        expert = piece.expert[rows]
        ids.append(checked_ids(piece.where, expert, numbers, n_experts))
        if piece.weight is not None:
            check_weights(piece.where, piece.weight[rows], expert.shape, numbers)
            weights.append(piece.weight[rows])
    joined = np.concatenate(ids, axis=1)
    incomplete = int((joined < 0).any(axis=2).sum())
    if incomplete:
        notes = (*notes, f"{incomplete} rows with -1: they stay in the file, a replay leaves them out")
    weight = np.concatenate(weights, axis=1) if weights else None
    origin = f"imported ({format_name})"
    return Imported(Recording(dump.path.stem, joined, numbers, _lengths(pieces), n_experts, weight, origin=origin), format_name, notes)


def _sizes(piece: Piece) -> str:
    return f"{piece.expert.shape[0]} layers of top-{piece.expert.shape[2]}"


def _speaking(pieces: Sequence[Piece], topk: int) -> tuple[list[int], list[int]]:
    """Positions of the layers with choices, and positions of the layers without.

    A layer without choices is -1 everywhere, or 0 everywhere although a token has several choices.
    """
    quiet = [(p.expert < 0).all(axis=(1, 2)) | ((topk > 1) & ~p.expert.any(axis=(1, 2))) for p in pieces]
    silent = np.logical_and.reduce(quiet)
    return np.flatnonzero(~silent).tolist(), np.flatnonzero(silent).tolist()


def _chosen(where: str, numbers: Numbers, kept: list[int], wanted: Numbers | None) -> tuple[Numbers, list[int]]:
    if not kept:
        raise ConfigError(f"{where}: no layer has a choice, expected expert ids")
    if wanted is None:
        return numbers, kept
    for layer in wanted:
        if layer not in numbers:
            raise ConfigError(f"{where}: no layer {layer}, expected some of {', '.join(str(n) for n in numbers[:40])}")
    once = tuple(dict.fromkeys(wanted))
    return once, [kept[numbers.index(layer)] for layer in once]


def _lengths(pieces: Sequence[Piece]) -> I64 | None:
    # A piece without lengths is one sequence. A single piece without lengths may be any number of sequences.
    if len(pieces) == 1 and pieces[0].seq_len is None:
        return None
    return np.array([n for p in pieces for n in (p.seq_len or (p.expert.shape[1],))], dtype=np.int64)


def joined(parts: Sequence[Imported]) -> Imported:
    """The recordings of several files (of ranks or requests) as one. Tokens are in the order of the files.

    A file without lengths is one sequence. Raises ConfigError for files that do not fit each other.
    """
    first = parts[0].trace
    for part in parts[1:]:
        trace = part.trace
        same = (trace.layers, trace.n_experts, trace.topk, trace.weight is None) == (first.layers, first.n_experts, first.topk, first.weight is None)
        if not same:
            raise ConfigError(f"{trace.name}: found {_form(trace)}, expected {_form(first)} as in {first.name}")
        if trace.synthetic or first.synthetic:
            raise ConfigError(f"{trace.name}: counts are drawn file by file, expected one file")
    lengths = [np.array([p.trace.n_tokens]) if p.trace.seq_len is None else p.trace.seq_len for p in parts]
    weights = [p.trace.weight for p in parts if p.trace.weight is not None]
    trace = replace(
        first,
        expert=np.concatenate([p.trace.expert for p in parts], axis=1),
        seq_len=np.concatenate(lengths),
        weight=np.concatenate(weights, axis=1) if weights else None,
    )
    return Imported(trace, parts[0].format, tuple(dict.fromkeys(note for p in parts for note in p.notes)))


def _form(trace: Recording) -> str:
    layers = ", ".join(str(n) for n in trace.layers[:12])
    return f"top-{trace.topk} of {trace.n_experts} experts{'' if trace.weight is None else ' with gate weights'} in layers {layers}"


_ROUNDS_PER_CHOICE = 6  # exchanges per choice on average: exp(-6) of the choices keep their first token
_MAX_TOKENS = 1 << 19
_MAX_COUNT = 10**13  # the sum of 2^16 such counts fits in int64
_BYTES_PER_CHOICE = 16  # peak memory of the draw, per (token, expert)


def check_counts(where: str, count: Reals, layers: Numbers) -> None:
    """Raises ConfigError that names layer and expert for a count that is negative, NaN or above 10^13.

    `count`: [layers, experts]. `layers`: the layer number of every row.
    """
    with np.errstate(invalid="ignore"):
        wrong = ~((count >= 0) & (count <= _MAX_COUNT))
    if wrong.any():
        row, expert = (int(i) for i in np.argwhere(wrong)[0])
        raise ConfigError(f"{where}: layer {layers[row]}, expert {expert}: found count {count[row, expert]}, expected 0 to {_MAX_COUNT}")


def summed(where: str, count: Array) -> Array:
    """The sum [layers, experts] of `count` [steps, layers, experts]. Every step is checked as by `check_counts`."""
    total: Array = np.zeros(count.shape[1:], dtype=np.float64 if count.dtype.kind == "f" else np.int64)
    for step, addend in enumerate(count):
        check_counts(f"{where}: step {step}", addend, tuple(range(len(addend))))
        total = total + addend
        check_counts(where, total, tuple(range(len(total))))
    return total


def _draw_exact(rng: np.random.Generator, count: I64, topk: int, n_tokens: int) -> I32:
    """Expert ids [n_tokens, topk] int32, distinct within a token. Expert `e` occurs exactly `count[e]` times.

    `count`: [n_experts]. No count is above `n_tokens`, and their sum is at most `n_tokens * topk`. -1 fills the
    remaining places. The draw is nearly uniform among all such tables: experts are dealt one after the other, then
    random pairs of tokens exchange experts. A token gives an expert only to a token that does not have it.
    """
    order = rng.permutation(count.size)
    dealt = np.full(n_tokens * topk, -1, dtype=np.int32)
    dealt[: count.sum()] = np.repeat(order, count[order])
    # Token t gets every n_tokens-th entry. A run of one expert is at most n_tokens long, so no token gets it twice.
    expert = np.ascontiguousarray(dealt.reshape(topk, n_tokens).T)
    column = np.arange(n_tokens // 2)
    for _ in range(_ROUNDS_PER_CHOICE * topk if n_tokens > 1 else 0):
        pair = rng.permutation(n_tokens)[: n_tokens // 2 * 2].reshape(2, -1)
        place = rng.integers(0, topk, size=pair.shape)
        first, second = expert[pair[0]], expert[pair[1]]
        a, b = first[column, place[0]], second[column, place[1]]
        fits = ((second != a[:, None]) | (a < 0)[:, None]).all(axis=1) & ((first != b[:, None]) | (b < 0)[:, None]).all(axis=1)
        expert[pair[0][fits], place[0][fits]] = b[fits]
        expert[pair[1][fits], place[1][fits]] = a[fits]
    return np.asarray(expert[rng.permutation(n_tokens)])


def scaled(load: F64, n_choices: int) -> I64:
    """Whole counts with sum `n_choices`, proportional to `load`, by largest remainder. The lower id wins a tie."""
    share = load / load.sum() * n_choices
    count = np.floor(share).astype(np.int64)
    rest = n_choices - int(count.sum())
    count[np.argsort(count - share, kind="stable")[:rest]] += 1
    return np.asarray(count)


def imported_counts(format_name: str, where: str, name: str, count: Reals, layers: Numbers, hints: Hints) -> Imported:
    """A Recording that is drawn from `count` [layers, experts]. Each layer has its own random stream.

    Layers without any load are left out. Without `hints.tokens` the counts must be whole numbers, and the drawn tokens have exactly these counts.
    With `hints.tokens` the counts are scaled to that number of tokens first. Raises ConfigError.
    """
    topk = hints.need("topk", where, " of counts")
    if count.shape[1] > 1 << 16:
        raise ConfigError(f"{where}: found {count.shape[1]} experts, expected at most {1 << 16}")
    if topk > count.shape[1]:
        raise ConfigError(f"{where}: found top-{topk}, expected at most the {count.shape[1]} experts")
    if hints.experts not in (None, count.shape[1]):
        raise ConfigError(f"{where}: found counts of {count.shape[1]} experts, expected {hints.experts}")
    check_counts(where, count, layers)
    rows = _rows_with_load(where, count, layers, hints.layers)
    exactly = "exactly the recorded counts" if hints.tokens is None else f"the recorded counts scaled to {hints.tokens} tokens"
    notes = [origin := f"tokens drawn with {exactly} ({format_name})"]
    if len(rows) < len(layers) and hints.layers is None:
        notes.append(f"{len(layers) - len(rows)} layers without counts: left out")
    loads = [_whole_counts(where, count[row], layers[row], topk, hints.tokens) for row in rows]
    n_tokens = [_n_tokens(f"{where}: layer {layers[row]}", load, topk) for row, load in zip(rows, loads, strict=True)]
    n_bytes = len(rows) * max(n_tokens) * topk * _BYTES_PER_CHOICE
    if n_bytes > hints.max_bytes:
        size = f"{where}: drawing {max(n_tokens)} tokens takes {n_bytes} bytes"
        raise ConfigError(f"{size}, expected at most {hints.max_bytes}; --tokens T takes fewer")
    dtype = np.int16 if count.shape[1] <= 1 << 15 else np.int32
    expert: Ints = np.full((len(rows), max(n_tokens), topk), -1, dtype=dtype)
    for index, (row, load, used) in enumerate(zip(rows, loads, n_tokens, strict=True)):
        rng = np.random.default_rng(np.random.SeedSequence(hints.seed, spawn_key=(layers[row],)))
        expert[index, :used] = _draw_exact(rng, load, topk, used)
    incomplete = int(np.less(expert, 0).any(axis=2).sum())
    if incomplete:
        notes.append(f"{incomplete} rows with -1, because the counts do not fill every token: a replay leaves them out")
    trace = Recording(name, expert, tuple(layers[row] for row in rows), None, count.shape[1], None, True, origin)
    return Imported(trace, format_name, tuple(notes))


def _rows_with_load(where: str, count: Reals, layers: Numbers, wanted: Numbers | None) -> list[int]:
    loaded = [row for row in range(len(layers)) if count[row].any()]
    for layer in wanted or ():
        if layer not in [layers[row] for row in loaded]:
            raise ConfigError(f"{where}: no counts for layer {layer}, expected some of {', '.join(str(layers[row]) for row in loaded[:40])}")
    if not loaded:
        raise ConfigError(f"{where}: all counts are zero, expected some above")
    return loaded if wanted is None else [layers.index(layer) for layer in dict.fromkeys(wanted)]


def _n_tokens(where: str, load: I64, topk: int) -> int:
    """The number of tokens that the counts of a layer stand for. Raises ConfigError if no tokens have these counts."""
    n_tokens = -(-int(load.sum()) // topk)
    if n_tokens > _MAX_TOKENS:
        raise ConfigError(f"{where}: the counts stand for {n_tokens} tokens, expected at most {_MAX_TOKENS}; --tokens T scales them down")
    if load.max() > n_tokens:
        count = f"{where}, expert {load.argmax()}: found count {load.max()}"
        raise ConfigError(f"{count}, expected at most one for each of {n_tokens} tokens of top-{topk}")
    return n_tokens


def _whole_counts(where: str, load: Reals, layer: int, topk: int, tokens: int | None) -> I64:
    if tokens is not None:
        return scaled(load.astype(np.float64), tokens * topk)
    if (load != np.floor(load)).any():
        expert = int((load != np.floor(load)).argmax())
        raise ConfigError(f"{where}: layer {layer}, expert {expert}: found {load[expert]}, expected a whole count, or --tokens T to scale loads")
    return np.asarray(load.astype(np.int64))
