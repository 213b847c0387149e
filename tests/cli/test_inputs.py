"""Inputs that were taken without a word, and outputs that were refused after the work: one line, exit code 2, nothing written."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Call = Callable[..., Any]
MODEL = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4, "vocab_size": 100,
         "num_attention_heads": 4, "model_type": "qwen3_moe", "torch_dtype": "bfloat16"}  # fmt: skip
SLICES = "mixtral-8x7b --layout ep=8,gpus=8 --cluster hw-dgx-h100"
DENSE = "llama3-8b --layout tp=2,gpus=8"
HOLE = {"layer_list": [{"layer_id": 0, "device_list": [{"device_id": 0, "device_expert": [0, 2]}]}]}
FILES = {
    "twice.json": json.dumps(MODEL)[:-1] + ', "num_experts_per_tok": 4}',
    "place.json": '{"gpus": [[0, 1, 2, 3]], "gpus": [[0, 1], [2, 3]]}',
    "rows.json": '{"system": "ideal", "system": "deepep"}',
    "m.toml": 'base = "deepseek-v3"\nname = "mine"\n[whole]\nvocab = "many"\n',
    "r.py": "def f(cfg):\n    cfg.x = {1: [2]}\n    cfg.y = {[]: 1}\n    cfg.z = {[1]}\n    cfg.w = 0x" + "f" * 5000 + "\n    cfg.num_gpus = 8\n",
    "empty.sh": "",
    "slip.sh": "--seq-lenght 8192 --num-gpus 8",
    "long.sh": "--num-gpus 8 " + "x" * (2 << 20),
    "count.json": json.dumps({"layer_list": [{"layer_id": 0, "device_count": -1, "device_list": [{"device_id": 0, "device_expert": [0]}]}]}),
    "hole.json": json.dumps(HOLE), "minus.json": json.dumps(HOLE).replace("2]", "-1]"),
    "m.csv": 'id,kind,system,hardware,config_json,metric,value,unit,source\na,gemm_dense,torch,H100-SXM,"{}",True,53,us,x\n',
}  # fmt: skip
REFUSED = {
    f"model {SLICES},hbm_GB=60": "expected at most 53.8 of the 59.7 GiB of hw-dgx-h100+hbm_GB-60",
    "model mixtral-8x7b --layout ep=8,gpus=8 --cluster paper-nvl72,hbm_GB=1e-9": "of paper-nvl72+hbm_GB-1e-09",
    "model mixtral-8x7b --cluster hw-dgx-h100": "cluster: found it without a layout, expected --layout",
    "model mixtral-8x7b --recompute full": "recompute: found it without a layout, expected --layout",
    "model mixtral-8x7b --precision fp9": "precision: found it without a layout, expected --layout",
    "model twice.json": "twice.json: malformed JSON: found the key 'num_experts_per_tok' twice",
    "run ideal --gpus 2 --tokens 2 --model S-8 --placement place.json": "place.json: malformed JSON: found the key 'gpus' twice",
    "report rows.json -o r.html": "rows.json: line 1: malformed JSON: found the key 'system' twice",
    "report rows.json --out --": "--: found the ending '', expected .html",
    "run ideal --gpus 2 --tokens 2 --model m.toml": "m.toml: [whole]: vocab: found 'many', expected a valid integer",
    "step qwen2-moe --layout ep=12,gpus=24 --cluster hw-dgx-h100-x4": "ep: found 12 x etp 1, expected groups inside an NVLink domain of 8",
    f"step {DENSE} --systems deepep": "systems: found it with llama3-8b, which has no experts, expected none",
    f"step {DENSE} --routing uniform": "routing: found it with llama3-8b, which has no experts, expected none",
    f"step {DENSE} --blocks merged": "blocks: found it with llama3-8b, which has no experts, expected none",
    f"plan {DENSE[:9]} --gpus 8 --imbalance 2": "plan: imbalance: found it with llama3-8b, which has no experts, expected none",
    f"plan {DENSE[:9]} --gpus 8 --spread 0": "plan: spread: found it with llama3-8b, which has no experts, expected none",
    f"plan {DENSE[:9]} --gpus 8 --what-if": "plan: what_if: found it with llama3-8b, which has no experts, expected none",
    f"step {SLICES} --megatron-args empty.sh": "arguments: found none in 'empty.sh', expected --name value",
    f"step {SLICES} --megatron-args slip.sh": "arguments: found seq_lenght, expected seq_length",
    f"step {SLICES} --megatron-args long.sh": "long.sh: found 2097165 bytes, expected at most 1048576",
    "rtl tile-status -o .": "'.': cannot be written: found a folder",
    "trace ideal -o T.perfetto-trace --chakra /dev/null": "folder '/dev/null': cannot be written",
    "sweep x.toml --csv no/x": "no/x: cannot be written: found no folder",
    "serve mixtral-8x7b --ep-system zz": "EP system 'zz': no closed form for serving",
    "run ideal --gpus 2 --tokens 2 --placement eplb:slots=68,slots=128": "placement eplb: found slots twice",
    "routing placement count.json -o o.json": "device_count: found -1 beside a list of 1",
    "routing placement hole.json -o o.json": "layer 0: found no device with expert 1",
    "routing placement minus.json -o o.json": "found a device_id or expert that cannot be",
    "calibrate m.csv -o o.toml": "row 1: column metric: found 'True', expected a metric such as latency",
    "validate --data m.csv": "row 1: column metric: found 'True', expected a metric such as latency",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("line", REFUSED)
def test_refused_in_one_line(dysharp: Call, line: str) -> None:
    done = dysharp(*line.split())
    assert (done.code, done.out) == (2, "")
    assert REFUSED[line] in done.err.splitlines()[-1]
    assert {path.name for path in Path().iterdir()} == {*FILES}


def test_the_memory_of_the_cluster_counts(dysharp: Call) -> None:
    assert dysharp("model", *SLICES.split()).code == 2  # 80 GB are too few
    assert dysharp("model", *f"{SLICES},hbm_GB=500".split()).code == 0


def test_constants_of_a_recipe_that_are_no_values_are_left_out(dysharp: Call) -> None:
    done = dysharp("step", "mixtral-8x7b", "--cluster", "hw-dgx-h100", "--megatron-args", "r.py:f")
    assert "Traceback" not in done.err
    assert (done.code, "expected at most" in done.err) == (2, True)  # 8 GPUs with all experts each


def test_a_name_twice_in_an_npz_is_refused(dysharp: Call) -> None:
    np.savez("t.npz", expert=np.zeros((1, 2, 1), np.int64), num_experts=np.array([4]))
    with zipfile.ZipFile("t.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("expert.npy", archive.read("expert.npy"))
    for line in ("routing lint t.npz", "run ideal --gpus 2 --tokens 2 --routing trace:t.npz", "routing import t.npz -o o.npz"):
        done = dysharp(*line.split())
        assert (done.code, done.err.splitlines()[-1]) == (2, "dysharp: error: t.npz: found 3 members of 2 names, expected each name once")


def test_serving_tells_by_its_exit_code_that_nothing_fits(dysharp: Call) -> None:
    assert dysharp("serve", "deepseek-v3", "--gpus", "1").code == 1
    done = dysharp("serve", "qwen3-30b", "--gpus", "1", "--isl", "40000", "--osl", "961")
    assert (done.code, "40,961 tokens is longer than the 40,960 of qwen3-30b's config" in " ".join(done.err.split())) == (0, True)
    assert "longer" not in dysharp("serve", "qwen3-30b", "--gpus", "1", "--isl", "40000", "--osl", "960").err


def test_options_that_judge_kernels_are_refused_beside_runs_of_whole_models(dysharp: Call) -> None:
    from dysharp.measured.serving.setting import ServingRow

    Path("mine.csv").write_text(",".join(ServingRow.columns.all) + "\n")
    done = dysharp("validate", "--data", "mine.csv", "--cluster", "nosuch")
    assert (done.code, done.err) == (2, "dysharp: error: mine.csv: found serving runs of whole models, expected no --cluster beside them\n")
