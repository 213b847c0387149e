"""`dysharp routing import` and `dysharp capture`: what they write, print and refuse."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Call = Callable[..., Any]


def choices(n_tokens: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return np.argsort(rng.random((n_tokens, 3, 64)), axis=2)[:, :, :6]


def test_import_writes_a_trace_that_replays(dysharp: Call, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", choices(200))
    out = tmp_path / "out.npz"
    done = dysharp("routing", "import", str(tmp_path / "a.npy"), "--model", "deepseek-v2-lite", "-o", str(out), "--gpus", "8,16", "--json")
    assert done.code == 0
    assert done.err.splitlines() == ["note: read as vllm", "note: layers are numbered by their position in the file"]
    found = json.loads(done.out)
    assert {"experts", "topk", "tokens", "layers", "imbalance", "distinct_gpus", "path", "format", "notes"} <= set(found)
    assert (found["experts"], found["topk"], found["tokens"], len(found["layers"])) == (64, 6, 200, 3)
    described = json.loads(dysharp("routing", str(out), "--gpus", "8,16", "--json").out)
    assert described["imbalance"] == found["imbalance"]
    assert described["distinct_gpus"] == found["distinct_gpus"]
    row = json.loads(dysharp("run", "deepep", "--gpus", "4", "--tokens", "24", "--routing", str(out), "--layer", "2", "--json").out)
    assert (row["layer"], row["routing"]) == (2, "trace out layer 2 in-order")


def test_a_table_for_people(dysharp: Call, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", choices(50))
    done = dysharp("routing", "import", str(tmp_path / "a.npy"), "--experts", "64", "-o", str(tmp_path / "o.npz"), "--layers", "0,2")
    assert "a: 64 experts, top-6, 50 tokens" in done.out
    assert f"written: {tmp_path / 'o.npz'}" in done.out
    assert dysharp("routing", "import", "--format", "help", "x", "-o", "o.npz").out.startswith("vllm ")


def test_counts_are_drawn_and_say_so(dysharp: Call, tmp_path: Path) -> None:
    body = ["model,layer,expert,count", *(f"m,4,{e},{3 * (e % 5) + 20}" for e in range(64))]
    (tmp_path / "c.csv").write_text("\n".join(body))
    done = dysharp("routing", "import", str(tmp_path / "c.csv"), "--topk", "6", "--tokens", "300", "-o", str(tmp_path / "o.npz"))
    assert "note: tokens drawn with the recorded counts scaled to 300 tokens (counts)" in done.err
    header = dysharp("run", "deepep", "--gpus", "4", "--tokens", "24", "--routing", str(tmp_path / "o.npz")).err
    said = " ".join(header.split())  # printed lines are wrapped
    assert (
        "routing: drawn at random, not recorded: trace o layer 4 in-order, tokens drawn with the recorded counts scaled to 300 tokens (counts)"
        in said
    )


def test_placement(dysharp: Call, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", phy2log=np.tile(np.r_[np.arange(64), np.arange(8)], (2, 1)))
    out = str(tmp_path / "p.json")
    done = dysharp("routing", "placement", str(tmp_path / "a.npz"), "--gpus", "4", "--layer", "1", "-o", out)
    assert done.out == f"written: {out}, 72 slots on 4 GPUs; to use it: --placement {out}\n"
    assert "64 experts -> 72 slots on 4 GPUs" in dysharp("run", "deepep", "--gpus", "4", "--tokens", "24", "--placement", out).err
    refused = dysharp("routing", "placement", str(tmp_path / "a.npz"), "-o", str(tmp_path / "q.json"))
    assert (refused.code, refused.out) == (2, "")
    assert not (tmp_path / "q.json").exists()


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["a.npy", "-o", "o.npz"], "the number of experts is not in the file, expected --experts N or --model NAME"),
        (["a.npy", "-o", "o.npy", "--experts", "64"], "found the ending '.npy', expected .npz"),
        (["a.npy", "-o", "no/o.npz", "--experts", "64"], "cannot be written"),
        (["a.npy", "-o", "o.npz", "--experts", "64", "--limit", "0"], "--limit: found 0"),
        (["a.npy", "-o", "o.npz", "--experts", "64", "--limit", "1e-6"], "a.npy: 28800 bytes, expected at most 1073"),
        (["a.npy", "-o", "o.npz", "--experts", "64", "--layers", "x"], "--layers: found 'x', expected layer numbers"),
        (["a.npy", "-o", "o.npz", "--experts", "64", "--layers", "7"], "no layer 7, expected some of 0, 1, 2"),
        (["a.npy", "-o", "o.npz", "--experts", "0"], "found experts 0, expected at least 1"),
        (["a.npy", "-o", "o.npz", "--experts", "64", "--gpus", "0"], "found 0 GPUs"),
        (["a.npy", "-o", "o.npz", "--experts", "60"], "expected -1 to 59"),
        (["evil.pt", "-o", "o.npz"], "found a pickle, which can run code"),
        (["a.npy"], "Missing option '-o'"),
    ],
)
def test_refused_with_one_line(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], text: str) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", choices(200).astype(np.int64))
    Path("evil.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    before = sorted(p.name for p in tmp_path.iterdir())
    done = dysharp("routing", "import", *args)
    assert done.code == 2
    assert done.out == ""
    assert text in done.err
    assert done.err.splitlines()[-1].startswith("dysharp: error: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(("model", "code"), [("deepseek-v2-lite", 2), ("deepseek-v3", 0), ("S-8", 0)])
def test_more_layers_than_the_model_has(dysharp: Call, tmp_path: Path, model: str, code: int) -> None:
    """Layers before tokens is a usual mistake. deepseek-v2-lite has 27 layers; how many S-8 has is not known."""
    np.save(tmp_path / "a.npy", choices(28).transpose(1, 0, 2))
    args = ("--model", model, "--experts", "64", "-o", str(tmp_path / "o.npz"))
    done = dysharp("routing", "import", str(tmp_path / "a.npy"), *args)
    assert done.code == code
    expected = "a.npy: found 28 layers and 3 tokens, expected [tokens, layers, topk] with at most the 27 layers of the model\n"
    assert (expected in done.err) == (code == 2)


def tiny(folder: Path, **changes: Any) -> Path:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    fields = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None} | changes  # fmt: skip
    if "num_local_experts" in fields:
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**fields))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    model.save_pretrained(folder)
    return folder


def test_capture(dysharp: Call, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", num_local_experts=8, num_experts_per_tok=2)
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 20)
    out = tmp_path / "out.npz"
    args = ("--text", str(tmp_path / "text.txt"), "--max-tokens", "100", "--gpus", "4", "-o", str(out))
    done = dysharp("capture", str(folder), *args, "--json")
    assert done.code == 0
    assert "note: captured from the model's own routers, text fed as bytes" in done.err
    found = json.loads(done.out)
    assert (found["experts"], found["topk"], found["tokens"], len(found["layers"])) == (8, 2, 100, 2)
    assert set(found["imbalance"]) == set(found["distinct_gpus"]) == {"4"}
    assert found["path"] == str(out)
    first = out.read_bytes()
    table = dysharp("capture", str(folder), *args)
    assert "model (mixtral): 8 experts, top-2, 100 tokens" in table.out
    assert out.read_bytes() == first
    one = json.loads(dysharp("capture", str(folder), *args, "--layers", "1", "--json").out)
    assert [layer["layer"] for layer in one["layers"]] == [1]


@pytest.mark.slow
def test_the_example_trains_a_model_that_can_be_captured(dysharp: Call, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5")
    script = Path(__file__).resolve().parents[2] / "examples" / "train_tiny_moe.py"
    args = ["--steps", "3", "--layers", "2", "--experts", "8", "--topk", "2", "--out", str(tmp_path / "tiny")]
    done = subprocess.run([sys.executable, str(script), *args], capture_output=True, text=True, timeout=120, check=True)
    assert "not realistic" in done.stdout.splitlines()[-1]
    out = str(tmp_path / "o.npz")
    found = json.loads(dysharp("capture", str(tmp_path / "tiny"), "--text", str(script), "--max-tokens", "64", "-o", out, "--json").out)
    assert (found["experts"], found["topk"], found["tokens"]) == (8, 2, 64)


def test_capture_refuses(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny(Path("dense"))
    tiny(Path("moe"), num_local_experts=4, num_experts_per_tok=2)
    Path("t.txt").write_text("some text")
    Path("bad.txt").write_bytes(b"\xff\xfe")
    for args, text in [
        (("dense", "--text", "t.txt", "-o", "o.npz"), "LlamaForCausalLM: found no module named experts among"),
        (("none", "--text", "t.txt", "-o", "o.npz"), "none: no such folder"),
        (("moe", "--text", "none.txt", "-o", "o.npz"), "none.txt: cannot be read: No such file or directory"),
        (("moe", "--text", "bad.txt", "-o", "o.npz"), "expected UTF-8 text"),
        (("moe", "--text", "t.txt", "-o", "o.npz", "--layers", "5"), "layer 5 has no experts, expected some of 0, 1"),
        (("moe", "--text", "t.txt", "-o", "o.npz", "--max-tokens", "0"), "found max_tokens 0"),
    ]:
        done = dysharp("capture", *args)
        assert (done.code, done.out) == (2, "")
        assert text in done.err
        assert done.err.count("\n") == 1
    assert not list(tmp_path.glob("*o.npz*"))


def test_capture_without_the_extra(dysharp: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "t.txt").write_text("some text")
    done = dysharp("capture", str(tmp_path), "--text", str(tmp_path / "t.txt"), "-o", str(tmp_path / "o.npz"))
    assert done.code == 2
    assert "expected the extra: pip install 'dysharp[torch]'" in done.err
