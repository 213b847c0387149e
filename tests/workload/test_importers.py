"""Dumps of other tools, written in their documented formats, become the traces they hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from routing_dumps import HINTS, E, K, L, b64, choices, document, npy, recorder, torch_save

from dysharp.base.errors import ConfigError
from dysharp.specs import Model
from dysharp.workload import distinct_gpus, load_trace, make_routing, routing_from, save_trace
from dysharp.workload.importers import Hints, import_trace, sniff
from dysharp.workload.importers.pieces import Piece, _draw_exact, _lengths, scaled
from dysharp.workload.importers.placements import import_placement, placement_json
from dysharp.workload.importers.torch_file import _Plain


def test_vllm_offline(tmp_path: Path) -> None:
    one, two = choices(20), choices(9, seed=1)
    np.save(tmp_path / "a.npy", one.astype(np.int16))
    np.save(tmp_path / "b.npy", two.astype(np.uint8))
    assert sniff(tmp_path / "a.npy") == ("vllm",)
    done = import_trace([tmp_path / "a.npy", tmp_path / "b.npy"], hints=HINTS)
    assert (done.format, done.trace.n_experts, done.trace.layers) == ("vllm", E, (0, 1, 2, 3))
    np.testing.assert_array_equal(done.trace.expert, np.concatenate([one, two]).transpose(1, 0, 2))
    assert done.trace.seq_len is not None
    assert done.trace.seq_len.tolist() == [20, 9]
    assert not done.trace.synthetic


def test_vllm_dense_layers_are_left_out(tmp_path: Path) -> None:
    all_layers = choices(20)
    all_layers[:, :2] = 0
    np.save(tmp_path / "a.npy", all_layers)
    done = import_trace([tmp_path / "a.npy"], hints=HINTS)
    assert done.trace.layers == (2, 3)
    assert "layers 0, 1 route nothing (dense layers): left out" in done.notes
    assert import_trace([tmp_path / "a.npy"], hints=Hints(experts=E, layers=(3,))).trace.layers == (3,)
    with pytest.raises(ConfigError, match=r"a\.npy: no layer 1, expected some of 2, 3"):
        import_trace([tmp_path / "a.npy"], hints=Hints(experts=E, layers=(1,)))


def test_vllm_prompt_and_answer_arrays(tmp_path: Path) -> None:
    prompt, answer = choices(7), choices(5, seed=1)
    np.savez(tmp_path / "a.npz", prompt_routed_experts=prompt, routed_experts=answer)
    trace = import_trace([tmp_path / "a.npz"], hints=HINTS).trace
    np.testing.assert_array_equal(trace.expert.transpose(1, 0, 2), np.concatenate([prompt, answer]))


def test_vllm_server(tmp_path: Path) -> None:
    prompt, answers = choices(7), [choices(5, seed=1), choices(3, seed=2)]
    found = {
        "prompt_routed_experts": b64(npy(prompt.astype(np.int32))),
        "choices": [{"index": i, "routed_experts": b64(npy(a.astype(np.int32)))} for i, a in enumerate(answers)],
    }
    path = document(tmp_path / "a.json", found)
    assert sniff(path) == ("vllm",)
    trace = import_trace([path], hints=HINTS).trace
    np.testing.assert_array_equal(trace.expert.transpose(1, 0, 2), np.concatenate([prompt, *answers]))
    assert trace.seq_len is not None
    assert trace.seq_len.tolist() == [12, 3]
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps(found) + "\n\n" + json.dumps(found) + "\n")
    assert import_trace([lines], hints=HINTS).trace.n_tokens == 30


@pytest.mark.parametrize(("dtype", "stated"), [("int32", None), ("uint8", "uint8"), ("uint16", "uint16")])
def test_sglang_server(tmp_path: Path, dtype: str, stated: str | None) -> None:
    ids = choices(11)
    meta: dict[str, Any] = {"routed_experts": b64(ids.astype(dtype).tobytes())}
    if stated:
        meta["routed_experts_dtype"] = stated
    path = document(tmp_path / "a.json", [{"text": "x", "meta_info": meta}, {"text": "y", "meta_info": meta}])
    assert sniff(path) == ("sglang",)
    trace = import_trace([path], hints=Hints(experts=E, topk=K, n_layers=L)).trace
    np.testing.assert_array_equal(trace.expert.transpose(1, 0, 2), np.concatenate([ids, ids]))
    for hints, text in [
        (Hints(experts=E, n_layers=L), "top-k is not in the file, expected --topk N or --model NAME"),
        (Hints(experts=E, topk=K), "the number of layers is not in the file, expected --n-layers N"),
        (Hints(topk=K, n_layers=L), "the number of experts is not in the file, expected --experts N or --model"),
        (Hints(experts=E, topk=5, n_layers=L), r"answer 0: meta_info\.routed_experts: found \d+ bytes, expected a multiple of"),
    ]:
        with pytest.raises(ConfigError, match=text):
            import_trace([path], hints=hints)


def test_dynamo(tmp_path: Path) -> None:
    ids = choices(6)
    new = {"data": b64(ids.astype(np.uint8).tobytes()), "shape": list(ids.shape), "dtype": "uint8", "start": 2}
    old = {"data": base64.b85encode(ids.astype(np.int32).tobytes()).decode(), "shape": list(ids.shape), "start": 0}
    for number, value in enumerate([new, old, {"nvext": {"routed_experts": new}}, {"choices": [{"routed_experts": new}]}]):
        path = document(tmp_path / f"{number}.json", value)
        assert sniff(path) == ("dynamo",)
        done = import_trace([path], hints=HINTS)
        np.testing.assert_array_equal(done.trace.expert.transpose(1, 0, 2), ids)
        assert ("the first 2 rows of a sequence were not recorded" in done.notes) == (number != 1)


def test_sglang_recorder_per_token(tmp_path: Path) -> None:
    value, logical = recorder([6, 3])
    path = torch_save(tmp_path / "expert_distribution_recorder_1_0.pt", value)
    assert sniff(path) == ("sglang-recorder",)
    trace = import_trace([path]).trace
    assert (trace.n_experts, trace.topk, trace.synthetic) == (E, K, False)
    np.testing.assert_array_equal(trace.expert.transpose(1, 0, 2), logical)
    assert trace.seq_len is not None
    assert trace.seq_len.tolist() == [5, 1, 1, 1, 1]
    value["records"][1]["topk_ids_of_layer"][2, 1, 0] = 99
    with pytest.raises(ConfigError, match=r"record 1: layer 2, row 1, column 0: found physical expert 99, expected -1 to 15"):
        import_trace([torch_save(path, value)])


def test_sglang_recorder_counts(tmp_path: Path) -> None:
    value, logical = recorder([40, 20], with_ids=False)
    path = torch_save(tmp_path / "a.pt", value)
    with pytest.raises(ConfigError, match="top-k is not in the file of counts, expected --topk N"):
        import_trace([path])
    trace = import_trace([path], hints=Hints(topk=K)).trace
    assert trace.synthetic
    assert trace.n_tokens == 60
    counts = np.stack([np.bincount(logical[:, layer].ravel(), minlength=E) for layer in range(L)])
    np.testing.assert_array_equal([np.bincount(layer.ravel(), minlength=E) for layer in trace.expert], counts)
    stat = {"rank": 0, "logical_count": np.stack([counts, counts * 0, counts]).astype(np.int32), "average_utilization_rate_over_window": None}
    stat["logical_count"][:, 1] = 0  # a dense layer
    done = import_trace([torch_save(tmp_path / "stat.pt", stat)], hints=Hints(topk=K))
    assert done.trace.layers == (0, 2, 3)
    np.testing.assert_array_equal([np.bincount(layer.ravel(), minlength=E) for layer in done.trace.expert], 2 * counts[[0, 2, 3]])


def test_eplb(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    weight = np.array([[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]])
    path = torch_save(tmp_path / "weight.pt", {"weight": weight})
    with pytest.raises(ConfigError, match=r"layer 0, expert 10: found count 183, expected at most one for each of 87 tokens of top-12"):
        import_trace([path], hints=Hints(topk=12))
    trace = import_trace([path], hints=Hints(topk=4)).trace
    assert trace.origin == "tokens drawn with exactly the recorded counts (eplb)"
    for layer, load in zip(trace.expert, weight, strict=True):
        np.testing.assert_array_equal(np.bincount(layer[layer >= 0], minlength=E), load)
    save_trace(trace, tmp_path / "out.npz")
    routing = make_routing(f"trace:{tmp_path / 'out.npz'}:layer=1", make_model(E, 4), 4, 64)
    assert routing.synthetic
    assert routing.layer == 1
    assert "tokens drawn with exactly the recorded counts" in routing.description
    bare = torch_save(tmp_path / "bare.pt", weight)  # torch.save(weight, ...), its columns are experts
    for hints in (Hints(topk=4), Hints(topk=4, experts=12)):
        done = import_trace([bare], hints=hints)
        assert done.format == "eplb"
        np.testing.assert_array_equal(done.trace.expert, trace.expert)
    floats = torch_save(tmp_path / "f.pt", {"weight": weight / 7})
    with pytest.raises(ConfigError, match=r"layer 0, expert 0: found 12\.857.*, expected a whole count, or --tokens T"):
        import_trace([floats], hints=Hints(topk=4))
    few = import_trace([floats], hints=Hints(topk=4, tokens=100)).trace
    assert few.expert.shape == (2, 100, 4)
    assert (few.expert >= 0).all()


def test_vllm_load_window(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = np.tile(np.r_[np.arange(E), 0, 1], (2, 1))
    window = rng.integers(0, 20, (10, 2, E + 2))
    window[0, :, :2] += 30 - window.sum(axis=(0, 2))[:, None] % K  # whole tokens
    np.savez(tmp_path / "w.npz", expert_load_window=window, physical_to_logical_map=table)
    trace = import_trace([tmp_path / "w.npz"], hints=Hints(topk=K)).trace
    load = window.sum(axis=0)
    load[:, :2] += load[:, E:]
    for layer, expected in zip(trace.expert, load[:, :E], strict=True):
        np.testing.assert_array_equal(np.bincount(layer[layer >= 0], minlength=E), expected)


def test_megatron(tmp_path: Path) -> None:
    ids = choices(10)
    for name, value in {"list": list(ids.transpose(1, 0, 2).copy()), "buffer": ids}.items():
        path = torch_save(tmp_path / f"{name}.pt", value)
        assert sniff(path) == ("megatron",)
        np.testing.assert_array_equal(import_trace([path], hints=HINTS).trace.expert.transpose(1, 0, 2), ids)


def test_deepep(tmp_path: Path) -> None:
    ids, weight = choices(10, n_layers=1)[:, 0], np.random.default_rng(0).random((10, K)).astype(np.float32)
    ids[4, 1] = -1
    np.savez(tmp_path / "a.npz", topk_idx=ids, topk_weights=weight)
    done = import_trace([tmp_path / "a.npz"], hints=HINTS)
    np.testing.assert_array_equal(done.trace.expert[0], ids)
    assert done.trace.weight is not None
    np.testing.assert_array_equal(done.trace.weight[0], weight)
    assert "1 rows with -1: they stay in the file, a replay leaves them out" in done.notes
    np.save(tmp_path / "bare.npy", ids)
    with pytest.raises(ConfigError, match=r"may be eplb or deepep, expected --format .or --topk or --experts. to say which"):
        import_trace([tmp_path / "bare.npy"])
    assert import_trace([tmp_path / "bare.npy"], hints=HINTS).format == "deepep"
    assert import_trace([tmp_path / "bare.npy"], hints=Hints(experts=E, topk=K)).format == "deepep"
    assert import_trace([tmp_path / "bare.npy"], "deepep", HINTS).trace.weight is None
    weight[3, 2] = np.nan
    np.savez(tmp_path / "a.npz", topk_idx=ids, topk_weights=weight)
    with pytest.raises(ConfigError, match=r"layer 0, row 3, column 2: found weight nan, expected a finite number"):
        import_trace([tmp_path / "a.npz"], hints=HINTS)


def test_counts_of_a_csv(tmp_path: Path) -> None:
    load = [[5, 0, 9, 10], [6, 6, 6, 6]]
    lines = [f"m,{layer},{e},{n}" for layer, row in zip((3, 8), load, strict=True) for e, n in enumerate(row)]
    (tmp_path / "a.csv").write_text("\n".join(["model,layer,expert,count", *lines]))
    done = import_trace([tmp_path / "a.csv"], hints=Hints(topk=2))
    assert done.trace.layers == (3, 8)
    for layer, row in zip(done.trace.expert, load, strict=True):
        assert np.bincount(layer.ravel(), minlength=4).tolist() == row
        assert (np.sort(layer, axis=1)[:, 0] < np.sort(layer, axis=1)[:, 1]).all()
    again = import_trace([tmp_path / "a.csv"], hints=Hints(topk=2))
    np.testing.assert_array_equal(done.trace.expert, again.trace.expert)
    other = import_trace([tmp_path / "a.csv"], hints=Hints(topk=2, seed=1))
    assert (other.trace.expert != done.trace.expert).any()
    (tmp_path / "two.csv").write_text((tmp_path / "a.csv").read_text() + "\n" + "\n".join(line.replace("m,", "n,") for line in lines))
    with pytest.raises(ConfigError, match=r"holds 2 models, expected --counts-of NAME; expected one of m, n"):
        import_trace([tmp_path / "two.csv"], hints=Hints(topk=2))
    assert import_trace([tmp_path / "two.csv"], hints=Hints(topk=2, model="n")).trace.name == "n"
    with pytest.raises(ConfigError, match=r"layer 3, expert 3: found count 10, expected at most one for each of 8 tokens of top-3"):
        import_trace([tmp_path / "a.csv"], hints=Hints(topk=3))


def test_drawn_tokens_have_exactly_the_counts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        n_experts, n_tokens = int(rng.integers(1, 20)), int(rng.integers(1, 40))
        topk = int(rng.integers(1, n_experts + 1))
        # Counts of some real choice, so that they can be met.
        ids = np.argsort(rng.random((n_tokens, n_experts)) ** rng.random(n_experts) * 3, axis=1)[:, :topk]
        count = np.bincount(ids.ravel(), minlength=n_experts)
        drawn = _draw_exact(rng, count, topk, n_tokens)
        np.testing.assert_array_equal(np.bincount(drawn.ravel(), minlength=n_experts), count)
        ordered = np.sort(drawn, axis=1)
        assert (ordered[:, 1:] != ordered[:, :-1]).all()


def test_drawn_tokens_are_mixed_as_independent_ones() -> None:
    """Distinct GPUs per token are those of tokens drawn one by one with the same popularity."""
    rng = np.random.default_rng(1)
    n_tokens, n_experts, topk = 4096, 64, 6
    popularity = np.exp(0.6 * rng.standard_normal(n_experts))
    ids = np.argsort(rng.gumbel(size=(n_tokens, n_experts)) + np.log(popularity), axis=1)[:, -topk:]
    drawn = _draw_exact(rng, np.bincount(ids.ravel(), minlength=n_experts), topk, n_tokens)
    one, two = (distinct_gpus(routing_from(e, n_experts, 16)).with_source for e in (ids, drawn))
    assert two == pytest.approx(one, rel=0.01)
    pairs = [np.histogram2d(e[:, :-1].ravel(), e[:, 1:].ravel(), bins=n_experts)[0] for e in (np.sort(ids), np.sort(drawn))]
    assert np.corrcoef(pairs[0].ravel(), pairs[1].ravel())[0, 1] > 0.9


def test_scaling_is_largest_remainder() -> None:
    assert scaled(np.array([1.0, 1.0, 1.0]), 10).tolist() == [4, 3, 3]
    assert scaled(np.array([0.0, 5.0, 2.5]), 9).tolist() == [0, 6, 3]


def test_files_of_one_recording_must_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", choices(5))
    np.save(tmp_path / "b.npy", choices(5)[:, :2])
    with pytest.raises(ConfigError, match=r"b: found top-3 of 12 experts in layers 0, 1, expected top-3 of 12 experts in layers 0, 1, 2, 3"):
        import_trace([tmp_path / "a.npy", tmp_path / "b.npy"], hints=HINTS)
    np.savez(tmp_path / "c.npz", topk_idx=choices(5)[:, 0])
    with pytest.raises(ConfigError, match="found the formats deepep, vllm, expected files of one format"):
        import_trace([tmp_path / "a.npy", tmp_path / "c.npz"], hints=HINTS)


def test_placements(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    table = np.array([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, -1]])
    np.savez(tmp_path / "a.npz", phy2log=table)
    held = import_placement(tmp_path / "a.npz", 1, 3)
    assert held == [[3, 2], [1, 0], [3]]
    (tmp_path / "p.json").write_text(placement_json(held))
    placed = make_routing("uniform", make_model(4, 2), 3, 8, placement=str(tmp_path / "p.json")).placement
    assert placed.slot_expert.tolist() == [3, 2, 1, 0, 3, -1]
    devices = [{"device_id": g, "device_expert": experts} for g, experts in enumerate(held)]
    whole = {"moe_layer_count": 1, "layer_list": [{"layer_id": 5, "device_count": 3, "device_list": devices[::-1]}]}
    assert import_placement(document(tmp_path / "m.json", whole), 5) == held
    for path, layer, gpus, text in [
        ("a.npz", 1, None, "the number of GPUs is not in the file"),
        ("a.npz", 2, 3, "no layer 2, expected 0 to 1"),
        ("a.npz", 1, 4, "found 6 replicas, expected a multiple of 4"),
        ("m.json", 4, None, "no layer 4, expected one of 5"),
        ("m.json", 5, 2, "found 3 devices, expected 2"),
        ("p.json", 5, None, "no list layer_list, expected an expert map"),
    ]:
        with pytest.raises(ConfigError, match=text):
            import_placement(tmp_path / path, layer, gpus)
    devices[0]["device_expert"] = ["x"]
    with pytest.raises(ConfigError, match="layer 5, device 2: found a device_id or expert that cannot be"):
        import_placement(document(tmp_path / "m.json", whole), 5)


def test_an_import_replays(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    np.save(tmp_path / "a.npy", choices(64))
    trace = import_trace([tmp_path / "a.npy"], hints=HINTS).trace
    path = save_trace(trace, tmp_path / "out.npz")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    np.testing.assert_array_equal(load_trace(str(path)).expert, trace.expert)
    routing = make_routing(f"trace:{path}:layer=2", make_model(E, K), 4, 16)
    assert (routing.layer, routing.synthetic) == (2, False)
    with pytest.raises(ConfigError, match=r"found the ending '\.npy', expected \.npz"):
        save_trace(trace, tmp_path / "out.npy")
    with pytest.raises(ConfigError, match="cannot be written: found no folder"):
        save_trace(trace, tmp_path / "none" / "out.npz")


def test_lengths_that_a_dump_states_are_kept() -> None:
    """One piece: its own lengths if it has some, else unknown. Several: a piece without lengths is one sequence."""
    ids = np.zeros((1, 5, K), np.int64)
    stated, silent = Piece("a", ids, seq_len=(2, 3)), Piece("b", ids)
    assert _lengths([silent]) is None
    assert _lengths([stated]).tolist() == [2, 3]
    assert _lengths([silent, stated]).tolist() == [5, 2, 3]


def test_nested_dumps_have_a_limit() -> None:
    """A dictionary in a dictionary counts as a level, as a list in a list does."""
    plain = _Plain(Path("a.pt"), 1, SimpleNamespace(Tensor=np.ndarray))
    nested: Any = 1
    for _ in range(100):
        nested = {"a": nested}
    with pytest.raises(ConfigError, match=r"a\.pt: a\.a.*: more than \d+ levels"):
        plain.of(nested, "", 0)
