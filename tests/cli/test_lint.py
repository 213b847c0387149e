"""`dysharp routing lint`: its text, its values, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dysharp.workload import Recording, save_trace
from dysharp.workload.lint import lint

Call = Callable[..., Any]

GOLDEN = """\
skewed.npz: look at tokens per rank, dead experts, repetition, imbalance, EPLB (marked ! below)
1 layer, 16 experts, top-2, checked for 4 GPUs
tokens per rank: 0 to 400, mean 180; most on GPU 0, layer 5
  ! the busiest GPU receives 2.22x the mean: its links and GEMMs end last
recording: 400 tokens, all complete; 2 sequences or ranks of 100 to 300 tokens
  - nothing is left out
dead experts: 8 of 16, most in layer 5: 8 (3, 7, 9, 11, 12, 13, ...)
  ! this text never uses them: their slots can hold copies of hot experts
repetition: 7 of 400 tokens are distinct in their choices over 1 layer; at 50 tokens per GPU, 4 of 4
  GPUs read tokens that another GPU reads too
  ! whole sequences do not fill the GPUs: add :window=mixed to read each token once
imbalance: GPUs 2.40 max/mean in layer 5 (median layer 2.40), experts 8.00 in layer 5
  ! GEMMs of layer 5 take about 2.40x those of a balanced layer
EPLB: rows (not time) of the busiest GPU: 240 as placed; 16 slots -17 %, 20 slots -57 %, 24 slots
  -57 %, 32 slots -58 %; placed by the first half of the tokens, judged on the second
  ! EPLB pays: --placement eplb:slots=20 (5 expert slots per GPU)
"""


@pytest.fixture
def skewed(tmp_path: Path) -> Path:
    """Expert 0 is in every token; experts 1, 2, 4, 5, 6, 8 and 10 take turns; 40 tokens are rare."""
    other = np.where(np.arange(400) % 20 == 0, 2, np.array([1, 4, 5, 6, 8, 10])[np.arange(400) % 6])
    expert = np.stack([np.zeros(400, int), other], axis=1)[None]
    return save_trace(Recording("skewed", expert, (5,), np.array([300, 100]), 16), tmp_path / "skewed.npz")


def test_golden_text(dysharp: Call, skewed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(skewed.parent)
    done = dysharp("routing", "lint", "skewed.npz", "--gpus", "4", "--tokens", "50")
    assert done.code == 0
    assert done.out == GOLDEN
    assert max(map(len, done.out.splitlines())) <= 100


def test_values(skewed: Path) -> None:
    found = lint(str(skewed), 4, tokens=50)
    layer = found.layers[0]
    assert (layer.n_rows, layer.n_tokens, layer.n_incomplete, layer.n_distinct) == (800, 400, 0, 7)
    assert layer.dead == (3, 7, 9, 11, 12, 13, 14, 15)
    assert sum(layer.rows_per_gpu) == 800
    assert layer.expert_max_mean == 8.0
    assert layer.tokens_per_gpu is not None
    assert layer.tokens_per_gpu[0] == 400
    assert [row.n_slots for row in layer.eplb] == [16, 20, 24, 32]
    # With a copy of expert 0 on every GPU each GPU has a fourth of its rows, and no placement can have fewer than the mean.
    assert all(row.rows_after >= 100 for row in layer.eplb)


def test_a_balanced_recording_needs_no_look(tmp_path: Path) -> None:
    expert = np.stack([(np.arange(640) * 2 + c) % 16 for c in range(2)], axis=1)[None].repeat(2, axis=0)
    expert[1] = (expert[1] + 2 * (np.arange(640) // 8)[:, None]) % 16
    path = save_trace(Recording("even", expert, (0, 1), None, 16), tmp_path / "even.npz")
    levels = {f.name: (f.level, f.advice) for f in lint(str(path), 4).findings}
    assert levels["dead experts"][1] == "every expert has rows in every layer"
    assert levels["imbalance"][0] == levels["dead experts"][0] == levels["tokens per rank"][0] == "ok"
    assert levels["EPLB"] == ("ok", "EPLB does not pay: it saves less than 5 %")
    assert levels["repetition"][0] == "look"  # 64 distinct tokens of 640


def test_repetition_counts_gpus_that_read_the_same(skewed: Path) -> None:
    short = lint(str(skewed), 8, tokens=400)
    assert short.reading is not None
    assert (short.reading.n_distinct, short.reading.n_sharing) == (400, 8)
    advice = {f.name: f.advice for f in short.findings}["repetition"]
    assert advice.endswith("record more, or simulate at most 50 tokens per GPU")
    alone = lint(str(skewed), 1, tokens=400)
    assert alone.reading is not None
    assert alone.reading.n_sharing == 0


def test_incomplete_tokens_are_named(tmp_path: Path) -> None:
    expert = np.stack([np.arange(40) % 4, 4 + np.arange(40) % 4], axis=1)[None].copy()
    expert[0, :5, 1] = -1
    path = save_trace(Recording("part", expert, (3,), None, 8), tmp_path / "part.npz")
    found = lint(str(path), 2)
    assert found.layers[0].n_incomplete == 5
    assert "35 complete tokens, 5 without a complete choice in layer 3" in found.findings[1].text


def test_counts_have_no_tokens(dysharp: Call, tmp_path: Path) -> None:
    body = ["model,layer,expert,count", *(f"m,{layer},{e},{1000 if e == layer else 10 * (e > 0)}" for layer in (1, 2) for e in range(8))]
    (tmp_path / "c.csv").write_text("\n".join(body))
    found = json.loads(dysharp("routing", "lint", str(tmp_path / "c.csv"), "--gpus", "2", "--json").out)
    assert [f["name"] for f in found["findings"]] == ["dead experts", "imbalance", "EPLB"]
    assert found["layers"][0]["dead"] == [0]
    assert found["layers"][0]["tokens_per_gpu"] is None
    assert found["findings"][2]["advice"] == "EPLB pays: --placement eplb:slots=10 (5 expert slots per GPU)"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.npz"], "trace 'nowhere.npz': no such file or packaged trace"),
        (["gpt-oss-20"], 'did you mean "gpt-oss-20b"?'),
        (["nowhere.csv"], "nowhere.csv: cannot be read"),
        (["gpt-oss-20b", "--layer", "99"], "trace gpt-oss-20b: no layer 99, expected one of 0 to 23"),
        (["gpt-oss-20b", "--gpus", "0"], "lint: found 0 gpus, expected 1 to"),
        (["gpt-oss-20b", "--tokens", "-1"], "lint: found -1 tokens, expected 1 to"),
    ],
)
def test_bad_input_is_one_line(dysharp: Call, args: list[str], message: str) -> None:
    done = dysharp("routing", "lint", *args)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_a_damaged_file_is_one_line(dysharp: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no zip")
    done = dysharp("routing", "lint", str(tmp_path / "bad.npz"))
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "bad.npz: damaged or not an .npz file" in done.err
