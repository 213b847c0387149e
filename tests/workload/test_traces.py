"""Recorded routing: packaged traces, dealing, counts, and files that must be refused."""

import csv
import json
import warnings
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.specs import Model, load_model
from dysharp.workload import describe, imbalance, make_routing, packaged_traces, rows_per_expert, save_trace
from dysharp.workload.counts import load_counts
from dysharp.workload.deal import deal
from dysharp.workload.traces import Recording, load_trace

PACKAGED = Path(describe.__code__.co_filename).with_name("data")
RECORDED = Path(__file__).with_name("data")


def _write(path: Path, **changes: Any) -> Path:
    """A good file in the own format (2 layers, 6 tokens, top-2 of 5) with some arrays changed or removed."""
    expert = np.array([[[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 2]]] * 2, dtype=np.int16)
    arrays: dict[str, Any] = {
        "expert": expert,
        "weight": np.full(expert.shape, 0.5, dtype=np.float16),
        "layer_id": np.array([1, 4]),
        "token_rank": np.array([0, 0, 1, 1, 1, 2]),
        "meta": np.array(json.dumps({"model": "toy", "k": 2, "E": 5})),
    }
    arrays |= changes
    with path.open("wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_own_format(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    trace = load_trace(str(_write(tmp_path / "toy.npz")))
    assert (trace.name, trace.layers, trace.n_experts, trace.topk) == ("toy", (1, 4), 5, 2)
    assert trace.seq_len is not None
    assert trace.seq_len.tolist() == [2, 3, 1]
    routing = make_routing(f"trace:{tmp_path / 'toy.npz'}:layer=4", make_model(5, 2), 3, 4)
    assert routing.description == "trace toy layer 4 in-order"
    assert not routing.synthetic
    assert routing.notes[-1].startswith("warning: ")
    assert "recorded tokens are distinct among them" in routing.notes[-1]


@pytest.mark.parametrize("name", packaged_traces())
def test_packaged_traces_load(name: str) -> None:
    trace = load_trace(name)
    assert trace.seq_len is not None
    assert trace.seq_len.sum() == trace.n_tokens
    assert (trace.n_experts, trace.topk) in ((64, 6), (32, 4))


def test_mixed_tasks_are_joined() -> None:
    trace = load_trace("deepseek-v2-lite")
    assert trace.expert.shape == (26, 33279, 6)
    assert trace.seq_len is not None
    assert trace.seq_len.size == 127 + 33 + 13 + 40


def test_licences_ship_with_the_traces() -> None:
    notice = (PACKAGED / "README.md").read_text()
    for path in PACKAGED.glob("*.npz"):
        assert path.name in notice
    assert len(list((PACKAGED / "licenses").glob("*.txt"))) == 2


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(describe.__code__.co_filename).with_name("README.md").read_text()
    exec(readme.split("```python")[1].split("```")[0], {})
    assert "trace deepseek-v2-lite layer" in capsys.readouterr().out


def _numbered(lengths: list[int], layers: int = 1) -> Recording:
    """Token i chose experts 2i and 2i + 1, so that a dealt row tells where it came from."""
    n = sum(lengths)
    expert = np.arange(2 * n, dtype=np.int16).reshape(1, n, 2).repeat(layers, axis=0)
    return Recording("numbered", expert, tuple(range(layers)), np.array(lengths), 2 * n)


def test_whole_sequences_in_order() -> None:
    lengths = [3, 5, 2, 7, 4, 6]
    sequence = np.repeat(np.arange(6), lengths)
    expert, notes = deal(_numbered(lengths), 0, 3, 6, "in-order", np.random.default_rng(0))
    token = expert[:, 0] // 2
    assert notes == ()
    owners = [set(sequence[token[gpu * 6 : gpu * 6 + 6]].tolist()) for gpu in range(3)]
    assert sum(len(owned) for owned in owners) == len(set().union(*owners)), "a sequence on two GPUs"
    for gpu in range(3):
        mine = token[gpu * 6 : gpu * 6 + 6]
        for previous, current in pairwise(mine):
            # Either the next token of the sequence, or the first one of another.
            assert current == previous + 1 or current in np.cumsum([0, *lengths])


def test_short_trace_is_drawn_again_evenly() -> None:
    expert, notes = deal(_numbered([2, 2, 2]), 0, 4, 6, "in-order", np.random.default_rng(0))
    dealt = "warning: 24 tokens are dealt, but only 6 of the 6 recorded tokens are distinct among them"
    assert notes == (f"{dealt}; up to 4 of 4 GPUs read the same token",)
    np.testing.assert_array_equal(np.bincount(expert[:, 0] // 2), [4] * 6)
    expert, notes = deal(_numbered([6]), 0, 4, 6, "mixed", np.random.default_rng(0))
    assert notes[0].startswith(dealt)
    np.testing.assert_array_equal(np.bincount(expert[:, 0] // 2), [4] * 6)


def test_one_sequence_is_cut_over_the_gpus() -> None:
    """600 tokens of one request on 8 GPUs of 128: all tokens are used, and each is read by at most two GPUs."""
    expert, notes = deal(_numbered([600]), 0, 8, 128, "in-order", np.random.default_rng(0))
    token = (expert[:, 0] // 2).reshape(8, 128)
    assert token[:, 0].tolist() == [75 * gpu for gpu in range(8)]
    assert np.unique(token).size == 600
    assert np.bincount(token.reshape(-1)).max() == 2
    dealt = "warning: 1024 tokens are dealt, but only 600 of the 600 recorded tokens are distinct among them"
    assert notes == ("one sequence: each GPU starts at its own token of the 600", f"{dealt}; up to 2 of 8 GPUs read the same token")


def test_a_long_sequence_is_not_repeated() -> None:
    expert, notes = deal(_numbered([50]), 0, 4, 6, "in-order", np.random.default_rng(0))
    assert (expert[:, 0] // 2).tolist() == list(range(24))
    assert len(notes) == 1


def test_decode_takes_one_token_of_each_sequence() -> None:
    lengths = [3, 1, 2]
    expert, notes = deal(_numbered(lengths), 0, 2, 3, "decode", np.random.default_rng(0))
    sequence = np.repeat(np.arange(3), lengths)[expert[:, 0] // 2]
    assert sorted(sequence[:3].tolist()) == [0, 1, 2], "one token of every sequence first"
    assert sorted(sequence[3:5].tolist()) == [0, 2], "then of every sequence that has another"
    assert np.unique(expert[:, 0]).size == 6
    assert notes == ("6 requests stand for one token each, from 3 recorded sequences",)


def test_unrecorded_tokens_are_left_out() -> None:
    trace = _numbered([2, 3])
    trace.expert[0, [0, 1, 3]] = -1
    expert, notes = deal(trace, 0, 1, 2, "in-order", np.random.default_rng(0))
    assert notes == ("3 of 5 tokens not recorded in this layer, left out",)
    assert expert[:, 0].tolist() == [4, 8]
    trace.expert[:] = -1
    with pytest.raises(ConfigError, match=r"trace numbered: layer 0 has no complete token"):
        deal(trace, 0, 1, 2, "mixed", np.random.default_rng(0))


def test_without_sequences_windows_are_dealt(tmp_path: Path) -> None:
    trace = load_trace(str(_write(tmp_path / "toy.npz", token_rank=None)))
    assert trace.seq_len is None
    _, notes = deal(trace, 0, 3, 2, "in-order", np.random.default_rng(0))
    assert notes == ("no sequence lengths recorded: cut into windows of 2 tokens",)


def test_median_layer_is_the_median() -> None:
    model = load_model("deepseek-v2-lite")
    rows = describe("deepseek-v2-lite", [32])
    ratios = {row.layer: row.gpus[0].copies_max_mean for row in rows}
    routing = make_routing("trace:deepseek-v2-lite", model, 32, 64)
    layer = int(routing.description.split()[3])
    assert ratios[layer] == sorted(ratios.values())[12]
    assert routing.notes[0] == f"layer {layer} has the median imbalance on 32 GPUs"
    assert np.median(list(ratios.values())) == pytest.approx(1.94, abs=0.01)
    same = make_routing("trace:deepseek-v2-lite", model, 32, 64, layer=layer)
    np.testing.assert_array_equal(routing.expert, same.expert)


def test_replay_keeps_the_measured_imbalance() -> None:
    model = load_model("deepseek-v2-lite")
    for window in ("in-order", "mixed"):
        routing = make_routing(f"trace:deepseek-v2-lite:window={window}", model, 32, 1024)
        assert imbalance(routing).copies_max_mean == pytest.approx(1.94, rel=0.05)


STATS = {
    "max_mean": lambda row, _: row.max_mean,
    "cv": lambda row, _: row.cv,
    "cv_noise": lambda row, _: row.cv_noise,
    "unused": lambda row, _: row.n_unused,
    "imb": lambda row, gpu: gpu.copies_max_mean,
    "timb": lambda row, gpu: gpu.tokens_max_mean,
    "dist": lambda row, gpu: gpu.distinct_gpus,
    "uni": lambda row, gpu: gpu.distinct_gpus_uniform,
}


@pytest.mark.parametrize("trace", sorted(path.stem for path in PACKAGED.glob("*.npz")))
def test_description_equals_the_published_statistics(trace: str) -> None:
    """Independently computed statistics of the same files, layer by layer; 4 decimals are given."""
    gpus = (8, 16, 32)
    rows = {row.layer: row for row in describe(str(PACKAGED / f"{trace}.npz"), gpus)}
    with (RECORDED / "trace_statistics.csv").open() as file:
        published = [line for line in csv.DictReader(file) if line["trace"] == trace]
    assert len(published) == len(rows)
    for line in published:
        row = rows[int(line["layer"])]
        for name, read in STATS.items():
            if name in line:
                assert read(row, None) == pytest.approx(float(line[name]), abs=6e-5), (trace, row.layer, name)
                continue
            for gpu in row.gpus:
                wanted = float(line[f"{name}{gpu.n_gpus}"])
                assert read(row, gpu) == pytest.approx(wanted, abs=6e-5), (trace, row.layer, name)


def test_description_leaves_out_tokens_that_are_not_recorded(tmp_path: Path) -> None:
    """As if the tokens were not in the file."""
    whole = load_trace("deepseek-v2-lite-law").expert[:2].copy()
    whole[1, ::3] = -1
    _write(tmp_path / "holes.npz", **_arrays(whole[1:]))
    _write(tmp_path / "short.npz", **_arrays(np.delete(whole[1:], np.s_[::3], axis=1)))
    holes, short = (describe(str(tmp_path / f"{name}.npz"), (8, 16)) for name in ("holes", "short"))
    assert [(row.max_mean, row.cv, row.gpus) for row in holes] == [(row.max_mean, row.cv, row.gpus) for row in short]


def _arrays(expert: np.ndarray) -> dict[str, Any]:
    meta = np.array(json.dumps({"model": "law", "k": 6, "E": 64}))
    return {"expert": expert, "weight": None, "layer_id": np.arange(len(expert)), "token_rank": None, "meta": meta}


def test_description_of_counts() -> None:
    rows = [row for row in describe(str(RECORDED / "olmoe_counts.csv"), (8, 16, 32, 64)) if row.source == "olmoe-1b-7b-0924/wikipedia"]
    assert len(rows) == 3
    assert np.median([row.max_mean for row in rows]) == pytest.approx(6.18, abs=0.01)
    medians = [np.median([row.gpus[i].copies_max_mean for row in rows]) for i in range(4)]
    assert medians == pytest.approx([1.83, 2.13, 3.46, 6.18], abs=0.01)
    assert rows[0].gpus[0].distinct_gpus is None


def test_counts_are_reproduced(make_model: Callable[..., Model]) -> None:
    path = RECORDED / "olmoe_counts.csv"
    counts = load_counts(path, "olmoe-1b-7b-0924/c4")
    spec = f"counts:{path}:model=olmoe-1b-7b-0924/c4:layer=3"
    with pytest.raises(ConfigError, match=r"counts of .*: no layer 3, expected one of 0, 7, 15"):
        make_routing(spec, make_model(64, 8), 8, 4000)
    routing = make_routing(spec.replace("layer=3", "layer=7"), make_model(64, 8), 8, 4000)
    load = rows_per_expert(routing) / rows_per_expert(routing).sum()
    np.testing.assert_allclose(load, counts.count[1] / counts.count[1].sum(), atol=8e-4)
    assert routing.description == "counts olmoe-1b-7b-0924/c4 layer 7 (synthetic)"


def test_description_of_a_distribution() -> None:
    rows = describe("lognormal:0.65", [8, 32], model=load_model("S-8"), tokens_per_gpu=256)
    assert [row.gpus[0].n_gpus for row in rows] == [8, 32]
    assert rows[0].gpus[0].distinct_gpus == pytest.approx(rows[0].gpus[0].distinct_gpus_uniform, rel=0.03)
    with pytest.raises(ConfigError, match=r"a distribution needs a model"):
        describe("lognormal:0.65")
    with pytest.raises(ConfigError, match=r"no such file or packaged trace"):
        describe("lognormul")
    with pytest.raises(ConfigError, match=r"found 0 GPUs"):
        describe("gpt-oss-20b", [0])


def test_description_with_replicas() -> None:
    row = describe("gpt-oss-20b", [24])[0]
    assert row.gpus[0].note == "32 experts -> 48 slots on 24 GPUs"
    assert row.gpus[0].distinct_gpus_uniform is None


def _expert(layer: int, token: int, column: int, value: int) -> np.ndarray:
    good = np.array([[[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 2]]] * 2, dtype=np.int32)
    good[layer, token, column] = value
    return good


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too large": ({"expert": _expert(1, 2, 1, 5)}, r"layer 4, row 2, column 1: found expert 5, expected -1 to 4"),
    "too small": ({"expert": _expert(0, 5, 0, -2)}, r"layer 1, row 5, column 0: found expert -2"),
    "twice": ({"expert": _expert(0, 3, 1, 1)}, r"layer 1, row 3, column 1: expert 1 is in column 0 too"),
    "float ids": ({"expert": _expert(0, 0, 0, 0) * 1.0}, r"type float64, expected integers \[layers, tokens, topk\]"),
    "two axes": ({"expert": np.zeros((3, 2), int)}, r"shape \(3, 2\)"),
    "no tokens": ({"expert": np.zeros((2, 0, 2), int)}, r"shape \(2, 0, 2\)"),
    "NaN": ({"weight": np.where(_expert(0, 0, 0, 9) == 9, np.nan, 1.0)}, r"layer 1, row 0, column 0: found weight nan, expected a finite number"),
    "weight shape": ({"weight": np.ones((2, 6))}, r"weights of shape \(2, 6\)"),
    "layers": ({"layer_id": np.array([1, 1])}, r"layer numbers are negative or repeat"),
    "layer shape": ({"layer_id": np.array([1])}, r"layer numbers of shape \(1,\), expected 2 integers"),
    "ranks": ({"token_rank": np.zeros(5, int)}, r"token_rank of shape \(5,\)"),
    "seq sum": ({"seq_len": np.array([2, 3])}, r"seq_len adds up to 5 tokens, the expert ids have 6"),
    "seq zero": ({"seq_len": np.array([6, 0])}, r"seq_len row 1: found 0, expected at least 1"),
    "no meta": ({"meta": None}, r"array 'meta' is missing, found expert"),
    "meta JSON": ({"meta": np.array("{")}, r"meta: malformed JSON"),
    "meta E": ({"meta": np.array("{}")}, r"meta has no whole number \"E\""),
    "meta k": ({"meta": np.array('{"E": 5, "k": 3}')}, r"meta has \"k\" = 3, expected 2, the top-k of the array"),
    "meta zero": ({"meta": np.array('{"E": 0}')}, r"found 0 experts, expected 1 to 65536"),
    "meta bytes": ({"meta": np.array(3)}, r"expected one JSON text"),
    "nothing": ({"expert": None}, r"holds neither \"expert\" nor \"topk\""),
    "pickle": ({"weight": np.array([{}], dtype=object)}, r"array 'weight': holds pickled objects"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path) -> None:
    changes, message = BAD[case]
    path = _write(tmp_path / "bad.npz", **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        load_trace(str(path))
    assert "bad.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,layer,expert\n", r"found columns 'model,layer,expert', expected 'model,layer,expert,count'"),
        ("model,layer,expert,count\n", r"no rows"),
        ("model,layer,expert,count\nm,0,0,-3\n", r"row 2, column count: found '-3', expected a whole number"),
        ("model,layer,expert,count\nm,0,0,3\nm,0,0,3\n", r"row 3: found expert 0 of layer 0 again, expected each expert once"),
        ("model,layer,expert,count\nm,0,1,3\n", r"m: layer 0 has no row for expert 0 of 2"),
        ("model,layer,expert,count\nm,0,0,0\n", r"m: layer 0 has only zero counts"),
        ("model,layer,expert,count\nm,0,0\n", r"row 2: found 3 columns, expected 4"),
        ("model,layer,expert,count\na,0,0,1\nb,0,0,1\n", r"holds 2 models, add :model=NAME"),
        ('model,layer,expert,count\n"m,0,0,1\n', r"malformed CSV"),
    ],
)
def test_bad_counts(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_counts(path)
    assert "counts.csv" in str(caught.value)


def test_counts_that_do_not_fit_the_model(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("model,layer,expert,count\nm,0,0,5\nm,0,1,5\nm,0,2,0\n")
    with pytest.raises(ConfigError, match=r"counts of 3 experts, the model has 4"):
        make_routing(f"counts:{path}", make_model(4, 2), 2, 8)
    with pytest.raises(ConfigError, match=r"2 experts have a count, expected at least 3"):
        make_routing(f"counts:{path}", make_model(3, 3), 3, 8)
    routing = make_routing(f"counts:{path}", make_model(3, 2), 3, 8)
    assert rows_per_expert(routing).tolist() == [24, 24, 0]


def test_a_header_of_python_2_needs_no_warning(tmp_path: Path) -> None:
    """NumPy warns about integers as Python 2 wrote them; a reader of ours gets the trace and nothing else."""
    path = _write(tmp_path / "old.npz")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["layer_id.npy"] = members["layer_id.npy"].replace(b"(2,), ", b"(2L,),")
    assert b"(2L,)" in members["layer_id.npy"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_trace(str(path)).layers == (1, 4)


def test_lengths_of_sequences_are_saved(tmp_path: Path) -> None:
    expert = np.array([[[0, 1], [2, 3], [4, 0]]])
    for lengths in (None, np.array([1, 2])):
        again = load_trace(str(save_trace(Recording("toy", expert, (1,), lengths, 5), tmp_path / "toy.npz")))
        assert (again.seq_len is None) == (lengths is None)
        assert lengths is None or again.seq_len.tolist() == [1, 2]
