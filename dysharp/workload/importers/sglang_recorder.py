"""SGLang's expert distribution recorder: `.pt` files of the modes stat, stat_approx, per_token and per_pass."""

import numpy as np

from dysharp.base import I64, Array, ByName, ConfigError, Rows
from dysharp.workload.importers.dump import Dump, integer_array
from dysharp.workload.importers.pieces import Hints, Imported, Piece, imported, imported_counts, summed

SUMMARY = "SGLang expert_distribution_recorder_*.pt: per_token as recorded, stat and per_pass as counts"


def sniff(dump: Dump) -> bool:
    """Whether the file is a torch file with `logical_count` or `records`."""
    return dump.kind == "torch" and ("logical_count" in dump.mapping() or isinstance(dump.mapping().get("records"), list))


def load(dump: Dump, hints: Hints) -> Imported:
    """The recorded tokens in order of the passes if `records` have expert ids, otherwise tokens drawn from counts."""
    where, fields = str(dump.path), dump.mapping()
    if "logical_count" in fields:
        count = integer_array(fields["logical_count"], f"{where}: logical_count", (2, 3), "[steps, layers, experts]")
        return _counted(dump, count if count.ndim == 2 else summed(f"{where}: logical_count", count), hints)
    records = fields.get("records")
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise ConfigError(f"{where}: no records and no logical_count, expected one of them")
    logical = integer_array(fields.get("last_physical_to_logical_map"), f"{where}: last_physical_to_logical_map", (2,), "[layers, physical experts]")
    if logical.min() < 0 or logical.max() >= 1 << 16:
        layer, slot = (int(i) for i in np.argwhere((logical < 0) | (logical >= 1 << 16))[0])
        raise ConfigError(f"{where}: last_physical_to_logical_map: row {layer}, column {slot}: found {logical[layer, slot]}, expected an expert")
    if any(record.get("topk_ids_of_layer") is None for record in records):
        return _counted(dump, _per_pass(where, records, logical), hints)
    pieces = [_piece(f"{where}: record {i}", record, logical) for i, record in enumerate(records)]
    n_experts = hints.experts or int(logical.max()) + 1
    return imported("sglang-recorder", dump, _trimmed(pieces), hints, n_experts, layers=tuple(range(logical.shape[0])))


def _counted(dump: Dump, count: Array, hints: Hints) -> Imported:
    return imported_counts("sglang-recorder", str(dump.path), dump.path.stem, count, tuple(range(len(count))), hints)


def _per_pass(where: str, records: Rows, logical: Array) -> I64:
    """Counts [layers, logical experts]: counts of physical experts, summed over passes and copies."""
    steps = []
    for i, record in enumerate(records):
        here = f"{where}: record {i}: global_physical_count"
        count = integer_array(record.get("global_physical_count"), here, (2,), "[layers, physical experts]")
        if count.shape != logical.shape:
            raise ConfigError(f"{here}: found shape {count.shape}, expected {logical.shape} as last_physical_to_logical_map")
        steps.append(count)
    out = np.zeros((logical.shape[0], int(logical.max()) + 1), dtype=np.int64)
    np.add.at(out, (np.arange(len(logical))[:, None], logical), summed(f"{where}: global_physical_count", np.stack(steps)))
    return out


def _piece(where: str, record: ByName, logical: Array) -> Piece:
    ids = integer_array(record["topk_ids_of_layer"], f"{where}: topk_ids_of_layer", (3,), "[layers, tokens, topk]")
    if ids.shape[0] != logical.shape[0]:
        raise ConfigError(f"{where}: topk_ids_of_layer of {ids.shape[0]} layers, expected {logical.shape[0]} as last_physical_to_logical_map")
    wrong = (ids < -1) | (ids >= logical.shape[1])
    if wrong.any():
        layer, token, column = (int(i) for i in np.argwhere(wrong)[0])
        wrong_id = f"layer {layer}, row {token}, column {column}: found physical expert {ids[layer, token, column]}"
        raise ConfigError(f"{where}: {wrong_id}, expected -1 to {logical.shape[1] - 1}")
    experts = logical[np.arange(len(logical))[:, None, None], ids]
    lengths = record.get("extend_seq_lens")
    lengths = lengths.tolist() if isinstance(lengths, np.ndarray) else lengths
    n_tokens = ids.shape[1]
    fits = isinstance(lengths, list) and all(type(n) is int and n > 0 for n in lengths) and sum(lengths) == n_tokens
    # A record without lengths is a decode step: every token belongs to another request.
    seq_len = tuple(lengths) if fits and lengths else (1,) * n_tokens
    return Piece(where, np.where(ids < 0, -1, experts), seq_len=seq_len)


def _trimmed(pieces: list[Piece]) -> list[Piece]:
    """The pieces without columns that are -1 in every row. The recorder always writes eight columns."""
    width = max(piece.expert.shape[2] for piece in pieces)
    used = [c for c in range(width) if any(c < p.expert.shape[2] and bool((p.expert[:, :, c] >= 0).any()) for p in pieces)]
    if not used:
        raise ConfigError(f"{pieces[0].where}: no token has an expert, expected expert ids")
    return [Piece(p.where, p.expert[:, :, [c for c in used if c < p.expert.shape[2]]], None, p.seq_len) for p in pieces]
