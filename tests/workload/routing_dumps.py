"""Dumps of expert choices in the documented formats of other tools, for the tests of the importers."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dysharp.workload.importers import Hints

E, K, L = 12, 3, 4
HINTS = Hints(experts=E)


def choices(n_tokens: int, seed: int = 0, n_layers: int = L) -> NDArray[np.int64]:
    """[tokens, layers, topk] distinct ids."""
    rng = np.random.default_rng(seed)
    return np.argsort(rng.random((n_tokens, n_layers, E)), axis=2)[:, :, :K]


def npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def torch_save(path: Path, value: Any) -> Path:
    torch = pytest.importorskip("torch")

    def tensors(v: Any) -> Any:
        if isinstance(v, np.ndarray):
            return torch.from_numpy(v)
        if isinstance(v, dict):
            return {k: tensors(x) for k, x in v.items()}
        return [tensors(x) for x in v] if isinstance(v, list) else v

    torch.save(tensors(value), path)
    return path


def recorder(n_tokens: list[int], *, with_ids: bool = True) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """A dump of mode per_token (or per_pass): E experts in E + 4 slots, and the logical ids behind it, [tokens, layers, topk]."""
    rng = np.random.default_rng(5)
    table = np.stack([rng.permutation(np.r_[np.arange(E), rng.integers(0, E, 4)]) for _ in range(L)])
    records, logical = [], []
    for step, n in enumerate(n_tokens):
        ids = choices(n, seed=step)
        slots = np.full((L, n, 8), -1, dtype=np.int32)
        for layer in range(L):
            for token in range(n):
                slots[layer, token, :K] = [rng.choice(np.flatnonzero(table[layer] == e)) for e in ids[token, layer]]
        record: dict[str, Any] = {
            "forward_pass_id": step,
            "rank": 0,
            "gatherer_key": "primary",
            "input_ids": list(range(n)),
            "positions": list(range(n)),
            "extend_seq_lens": [n - 1, 1] if step == 0 else None,
            "forward_mode": 1,
            "misc_objects": [],
            "global_physical_count": np.stack([np.bincount(s[s >= 0], minlength=E + 4) for s in slots]).astype(np.int32),
        }
        records.append(record | ({"topk_ids_of_layer": slots} if with_ids else {}))
        logical.append(ids)
    return {"records": records, "last_physical_to_logical_map": table}, np.concatenate(logical)
