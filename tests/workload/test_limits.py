"""Values at the edge of what is accepted, and what a written file looks like to others."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.workload.closed import uniform_p
from dysharp.workload.counts import read_counts
from dysharp.workload.traces import load_trace, save_text


def test_the_largest_count_is_read_and_one_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(f"model,layer,expert,count\nm,0,0,{10**15}\n")
    assert read_counts(path)["m"].count.tolist() == [[10**15]]
    path.write_text(f"model,layer,expert,count\nm,0,0,{10**15 + 1}\n")
    with pytest.raises(ConfigError, match=f"row 2, column count: found '{10**15 + 1}', expected a whole number from 0 to {10**15}"):
        read_counts(path)


def test_one_gpu_is_needed_by_every_token() -> None:
    assert uniform_p(8, 1, 2) == 1.0
    with pytest.raises(ConfigError, match="found 8 experts, 0 GPUs, top-2"):
        uniform_p(8, 0, 2)


def test_a_saved_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    saved = save_text("a", tmp_path / "saved.csv", ".csv")
    assert saved.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["plain", "saved.csv"]


@pytest.mark.parametrize("absent", ["layer_ids", "seq_len", "num_experts"])
def test_a_plain_recording_without_an_array_is_refused(tmp_path: Path, absent: str) -> None:
    arrays = {
        "topk": np.zeros((1, 2, 1), np.int16), "layer_ids": np.array([0]), "seq_len": np.array([2]), "num_experts": np.array(4),
    }  # fmt: skip
    path = tmp_path / "plain.npz"
    np.savez(path, **arrays)
    assert load_trace(str(path)).n_experts == 4
    np.savez(path, **{name: array for name, array in arrays.items() if name != absent})
    with pytest.raises(ConfigError, match=f"array '{absent}' is missing, found"):
        load_trace(str(path))
