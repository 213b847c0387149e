"""`Recording`: expert choices of real tokens, in two checked `.npz` formats. The package ships some recordings."""

import json
from pathlib import Path

import numpy as np

from dysharp.base import ConfigError, check_destination, json_of, nearest, one_line, show, write_file, write_text
from dysharp.base.arrays import I64, Array, Bools, Floats, Ints
from dysharp.base.values import AnyPath, ByName, Numbers, Texts, frozen
from dysharp.workload.npz import read_npz
from dysharp.workload.placement import replica_loads
from dysharp.workload.routing import Placement, count_ids, max_over_mean

_DATA = Path(__file__).with_name("data")
_TASKS = ("intent", "law", "summary", "translation")
_PACKAGED: dict[str, Texts] = {
    "deepseek-v2-lite": tuple(f"deepseek_v2_lite_{task}.npz" for task in _TASKS),
    **{f"deepseek-v2-lite-{task}": (f"deepseek_v2_lite_{task}.npz",) for task in _TASKS},
    "gpt-oss-20b": ("gpt_oss_20b_decode.npz",),
}
_OWN = ("expert", "weight", "layer_id", "token_rank", "seq_len", "meta")
_PLAIN = ("topk", "layer_ids", "seq_len", "num_experts")
MAX_EXPERTS = 1 << 16
_MAX_ORIGIN = 200


@frozen
class Recording:
    """Expert ids of real tokens (a routing trace)."""

    name: str
    expert: Ints
    """[layers, tokens, topk] signed integers, -1 = not recorded."""
    layers: Numbers
    """The layer numbers of the model, one for each row of `expert`."""
    seq_len: I64 | None
    """[sequences] int64 lengths. The token axis is these sequences in order. None: the file has no lengths."""
    n_experts: int
    weight: Floats | None = None
    """Gate weights in the shape of `expert`. None: not recorded."""
    synthetic: bool = False
    """True: the ids were drawn so that they have recorded counts."""
    origin: str = ""
    """Source of the ids in one line, "" = not known."""

    @property
    def n_tokens(self) -> int:
        """Recorded tokens, with the incomplete ones (-1)."""
        return int(self.expert.shape[1])

    @property
    def topk(self) -> int:
        """Experts per token."""
        return int(self.expert.shape[2])

    def row_of(self, layer: int) -> int:
        """Index of a layer number on the first axis. Raises ConfigError if the layer was not recorded."""
        if layer not in self.layers:
            raise ConfigError(f"trace {self.name}: no layer {layer}, expected one of {_ranges(self.layers)}")
        return self.layers.index(layer)

    def recorded(self, row: int) -> Bools:
        """[tokens] bool: whether the token's choice in this layer is complete (has no -1)."""
        return np.asarray((self.expert[row] >= 0).all(axis=1))


def packaged_traces() -> Texts:
    """Names of the recordings that ship with the package."""
    return tuple(_PACKAGED)


def load_trace(name: str) -> Recording:
    """A packaged recording by name, or a recording from a file in one of two formats.

    | array | format of this package | plain format |
    |---|---|---|
    | expert ids `[layers, tokens, topk]`, integers, -1 = none | `expert` | `topk` |
    | gate weights in that shape | `weight`, optional | |
    | layer numbers `[layers]` | `layer_id`, optional | `layer_ids` |
    | lengths `[sequences]` | `seq_len`, or `token_rank [tokens]`, optional | `seq_len` |
    | number of experts | `E` in `meta` | `num_experts` |
    | `meta`: JSON text, also with `k` (topk), `synthetic` and `origin` | `meta` | |

    Raises ConfigError for a damaged file.
    """
    if name in _PACKAGED:
        parts = [_read(_DATA / file, name) for file in _PACKAGED[name]]
        return parts[0] if len(parts) == 1 else _joined(name, parts)
    path = Path(name)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # the name is too long or contains a NUL
        is_file = False
    if not is_file:
        raise ConfigError(f"trace {name[:200]!r}: no such file or packaged trace{nearest(name, _PACKAGED)}")
    return _read(path, path.stem)


def median_layer(trace: Recording, placement: Placement) -> int:
    """Index of the layer whose max/mean of copies per GPU is the median (of two middle layers the lower one)."""
    ratio = [copies_max_mean(layer_counts(trace, row), placement) for row in range(len(trace.layers))]
    return int(np.argsort(ratio, kind="stable")[(len(ratio) - 1) // 2])


def layer_counts(trace: Recording, row: int) -> I64:
    """How often the complete tokens chose each expert in one layer: [n_experts] int64."""
    ids = trace.expert[row]
    keep = trace.recorded(row)
    return count_ids(ids if keep.all() else ids[keep], trace.n_experts)


def copies_max_mean(count: I64, placement: Placement) -> float:
    """max/mean of (token, expert) copies per GPU, if replicas share their expert's load evenly."""
    per_slot = replica_loads(count, placement)
    return max_over_mean(per_slot.reshape(placement.n_gpus, -1).sum(axis=1))


def _joined(name: str, parts: list[Recording]) -> Recording:
    lengths = [part.seq_len for part in parts if part.seq_len is not None]
    expert = np.concatenate([part.expert for part in parts], axis=1)
    return Recording(name, expert, parts[0].layers, np.concatenate(lengths), parts[0].n_experts)


def _read(path: Path, name: str) -> Recording:
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: found ending {path.suffix!r}, expected a trace (.npz); `dysharp routing import` makes one of other files")
    arrays = read_npz(path, {*_OWN, *_PLAIN})
    if "expert" in arrays:
        _need(path, arrays, ("expert", "meta"))
        meta = _meta(path, arrays["meta"])
        n_experts = _experts_of_meta(path, meta)
        expert, layers = arrays["expert"], arrays.get("layer_id")
    elif "topk" in arrays:
        _need(path, arrays, _PLAIN)
        meta, n_experts = {}, _one_number(path, arrays["num_experts"])
        expert, layers = arrays["topk"], arrays["layer_ids"]
    else:
        raise ConfigError(f'{path}: holds neither "expert" nor "topk", expected expert ids [layers, tokens, topk]')
    if not 1 <= n_experts <= MAX_EXPERTS:
        raise ConfigError(f"{path}: found {n_experts} experts, expected 1 to {MAX_EXPERTS}")
    if expert.ndim != 3 or expert.dtype.kind not in "iu" or 0 in expert.shape:
        raise ConfigError(f"{path}: expert ids of {_form(expert)}, expected integers [layers, tokens, topk]")
    if meta.get("k", expert.shape[2]) != expert.shape[2]:
        raise ConfigError(f'{path}: meta has "k" = {show(meta["k"])}, expected {expert.shape[2]}, the top-k of the array of expert ids')
    numbers = _layer_numbers(path, layers, expert.shape[0])
    ids = checked_ids(path, expert, numbers, n_experts)
    weight = arrays.get("weight")
    if weight is not None:
        check_weights(path, weight, expert.shape, numbers)
    lengths = _lengths(path, arrays, expert.shape[1])
    origin = one_line(str(meta.get("origin", ""))[:_MAX_ORIGIN])
    return Recording(name, ids, numbers, lengths, n_experts, weight, meta.get("synthetic") is True, origin)


def _need(path: Path, arrays: dict[str, Array], names: Texts) -> None:
    for name in names:
        if name not in arrays:
            raise ConfigError(f"{path}: array {name!r} is missing, found {', '.join(sorted(arrays))}")


def _one_number(path: Path, value: Array) -> int:
    if value.size != 1 or value.dtype.kind not in "iu":
        raise ConfigError(f"{path}: num_experts of {_form(value)}, expected one integer")
    return int(value.reshape(-1)[0])


def _meta(path: Path, value: Array) -> ByName:
    if value.size != 1 or value.dtype.kind != "U":
        raise ConfigError(f"{path}: meta of {_form(value)}, expected one JSON text")
    meta = json_of(str(value.reshape(-1)[0]), f"{path}: meta")
    return meta if isinstance(meta, dict) else {}


def _experts_of_meta(path: Path, meta: ByName) -> int:
    n_experts = meta.get("E")
    if type(n_experts) is not int:
        raise ConfigError(f'{path}: meta has no whole number "E", expected the number of experts')
    return n_experts


def _layer_numbers(path: Path, value: Array | None, n_layers: int) -> Numbers:
    if value is None:
        return tuple(range(n_layers))
    if value.shape != (n_layers,) or value.dtype.kind not in "iu":
        raise ConfigError(f"{path}: layer numbers of shape {value.shape}, expected {n_layers} integers")
    numbers = tuple(int(number) for number in value)
    if len(set(numbers)) != n_layers or min(numbers) < 0:
        raise ConfigError(f"{path}: layer numbers are negative or repeat, expected each once")
    return numbers


def checked_ids(path: Path | str, expert: Array, layers: Numbers, n_experts: int) -> Ints:
    """The checked ids [layers, tokens, topk] in a small signed type.

    Raises ConfigError that names layer, row and column for an id out of range and for an id twice in a token.
    """
    ids = np.empty(expert.shape, np.int16 if n_experts <= 1 << 15 else np.int32)
    for layer, number in enumerate(layers):  # layer by layer, so that what is made on the way stays small
        where = f"{path}: layer {number}"
        _check_range(where, expert[layer], n_experts)
        ids[layer] = expert[layer]
        _check_distinct(where, ids[layer])
    return ids


def _check_range(where: str, expert: Array, n_experts: int) -> None:
    wrong: Bools = np.greater_equal(expert, n_experts)
    if expert.dtype.kind == "i":
        wrong |= np.less(expert, -1)
    if wrong.any():
        token, column = _first(wrong)
        raise ConfigError(f"{where}, row {token}, column {column}: found expert {expert[token, column]}, expected -1 to {n_experts - 1}")


def _check_distinct(where: str, ids: Ints) -> None:
    for column in range(1, ids.shape[1]):
        for other in range(column):
            twice = (ids[:, column] == ids[:, other]) & (ids[:, column] >= 0)
            if twice.any():
                token = _first(twice)[0]
                raise ConfigError(
                    f"{where}, row {token}, column {column}: expert {ids[token, column]} is in column {other} too, expected distinct experts"
                )


def check_weights(path: Path | str, weight: Array, shape: Numbers, layers: Numbers) -> None:
    """Raises ConfigError that names layer, row and column unless the weights are finite floats of shape `shape`."""
    if weight.shape != shape or weight.dtype.kind != "f":
        raise ConfigError(f"{path}: weights of {_form(weight)}, expected floats {shape}")
    wrong = ~np.isfinite(weight)
    if wrong.any():
        layer, token, column = _first(wrong)
        raise ConfigError(
            f"{path}: layer {layers[layer]}, row {token}, column {column}: found weight {weight[layer, token, column]}, expected a finite number"
        )


def _lengths(path: Path, arrays: dict[str, Array], n_tokens: int) -> I64 | None:
    """Lengths of sequences: `seq_len`, or the runs of tokens with one `token_rank`. None: the file has neither."""
    if "seq_len" in arrays:
        lengths = arrays["seq_len"]
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not lengths.size:
            raise ConfigError(f"{path}: seq_len of {_form(lengths)}, expected integers")
        if (lengths < 1).any():
            row = _first(lengths < 1)[0]
            raise ConfigError(f"{path}: seq_len row {row}: found {lengths[row]}, expected at least 1")
        total = sum(lengths.tolist())
        if total != n_tokens:
            raise ConfigError(f"{path}: seq_len adds up to {total} tokens, the expert ids have {n_tokens}")
        return lengths.astype(np.int64)
    rank = arrays.get("token_rank")
    if rank is None:
        return None
    if rank.shape != (n_tokens,) or rank.dtype.kind not in "iu":
        raise ConfigError(f"{path}: token_rank of {_form(rank)}, expected {n_tokens} integers")
    starts = np.flatnonzero(np.append(True, rank[1:] != rank[:-1]))
    return np.diff(np.append(starts, n_tokens)).astype(np.int64)


def _form(array: Array) -> str:
    return f"shape {array.shape} and type {str(array.dtype)[:40]}"


def _first(wrong: Bools) -> Numbers:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _ranges(numbers: Numbers) -> str:
    low, high = min(numbers), max(numbers)
    if high - low + 1 == len(numbers):
        return f"{low} to {high}"
    return ", ".join(str(number) for number in sorted(numbers)[:20])


def save_trace(trace: Recording, path: AnyPath) -> Path:
    """Write `trace` as `.npz` and return the path. `load_trace` reads the file. Equal recordings give equal bytes.

    The file appears complete. Raises ConfigError for another ending than `.npz` and where `files.write_file` does.
    """
    check_destination(path, ".npz")
    return write_file(path, lambda stream: np.savez_compressed(stream, **_arrays(trace)))


def save_text(text: str, path: AnyPath, ending: str) -> Path:
    """Write a text as UTF-8, complete or not at all, and return the path. Raises ConfigError as `files.check_destination`."""
    check_destination(path, ending)
    return write_text(path, text)


def _arrays(trace: Recording) -> ByName:
    meta = {"model": trace.name, "k": trace.topk, "E": trace.n_experts, "origin": trace.origin, "synthetic": trace.synthetic}
    arrays: ByName = {"expert": trace.expert, "layer_id": np.array(trace.layers, dtype=np.int32)}
    if trace.weight is not None:
        arrays["weight"] = trace.weight
    if trace.seq_len is not None:
        arrays["seq_len"] = trace.seq_len.astype(np.int64)
    return arrays | {"meta": np.array(json.dumps(meta))}
