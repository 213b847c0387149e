"""`dysharp model`: JSON, refusals in one line, files of one's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dysharp.training.memory import buffer_bytes

Call = Callable[..., Any]


def test_json_has_the_numbers(dysharp: Call) -> None:
    done = json.loads(dysharp("model", "deepseek-v3", "--json").out)
    assert done["parameters"]["total"] == 671_026_404_352
    assert sum(row["parameters"] for row in done["parts"] if row["part"] != "MTP") == done["parameters"]["total"]
    assert sum(row["gflop"] for row in done["parts"]) == pytest.approx(done["gflop_per_token"]["forward"])
    assert (round(done["model_gflop_per_token"]["megatron"], 2), done["memory"], done["layout"]) == (259.99, [], {})


@pytest.mark.parametrize(("layout", "where"), [("dp=1", "On 1 GPU (1f1b"), ("dp=2", "On 2 GPUs (1f1b")])
def test_one_gpu_is_no_gpus(layout: str, where: str, dysharp: Call) -> None:
    assert where in dysharp("model", "llama3-8b", "--layout", layout).out


def test_json_of_a_layout(dysharp: Call) -> None:
    done = json.loads(dysharp("model", "llama3-70b", "--layout", "tp=4,pp=4,vpp=5,gpus=64", "--fixed-gib", "2", "--json").out)
    assert (done["layout"]["dp"], done["layout"]["micro_batches"], done["layout"]["schedule"]) == (4, 16, "interleaved")
    assert [row["in_flight"] for row in done["memory"]] == [23, 21, 19, 17]
    first = done["memory"][0]
    assert first["allocated"] == pytest.approx(sum(first["gib"].values()))
    assert first["reserved"] == pytest.approx(first["allocated"] * 1.053 + 2)
    assert sum(first["activations_gib"].values()) == pytest.approx(first["gib"]["activations"])
    assert sum(row["layers"] for row in done["memory"]) == 80


REFUSED = {
    "--layout pp=62": "pp x vpp: found 62, expected at most layers = 61",
    "--layout ep=64 --cluster hw-dgx-h100": "ep: found 64 x etp 1, expected at most the 8 GPUs of the only NVLink domain",
    "--layout ep=64 --cluster hw-dgx-h100-x4": "found 64 GPUs, expected at most 32 (4 domains of 8)",
    "--layout tp=8 --gpu h100-sxm": "memory: found 4",
    "--layout tp=8 --precision half": "precision 'half': unknown",
    "--layout tp=8 --dispatcher nccl": "dispatcher 'nccl': unknown",
    "--layout tp=8 --recompute attn": "recompute: found 'attn', expected modules",
    "--layout tp=8 --schedule 2f2b": "schedule '2f2b': unknown",
    "--layout tp=8 --fixed-gib -1": "'--fixed-gib': -1.0 is not in the range 0<=x<=1000000000",
    "--sequence 0": "'--sequence': 0 is not in the range 1<=x<=16777216",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_input_gets_one_line(words: str, dysharp: Call) -> None:
    done = dysharp("model", "deepseek-v3", *words.split())
    *above, last = done.err.splitlines()
    assert (done.code, done.out, bool(above)) == (2, "", "memory" in last)
    assert REFUSED[words] in last


@pytest.mark.parametrize("verb", ["model", "step"])
def test_a_layout_that_does_not_fit_shows_the_memory_of_its_ranks(verb: str, dysharp: Call) -> None:
    machine = ("--cluster", "hw-dgx-h100", "--json")
    done = dysharp(verb, "deepseek-v2-lite", "--layout", "pp=3,ep=2,m=6,mbs=8", *machine)
    lines = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert lines[0] == "GiB of every pipeline rank at its peak"
    rows = [line.split() for line in lines[3:6]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert f"memory: found {max((row[-1] for row in rows), key=float)} GiB on pipeline rank" in lines[-1]
    assert max(map(len, lines[:-1])) <= 100


def test_a_file_of_ones_own(tmp_path: Path, dysharp: Call) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "deepseek-v3"\nname = "mine"\ntopk = 4\n[whole]\nmtp = 0\n')
    done = json.loads(dysharp("model", str(path), "--json").out)
    assert done["parameters"]["total"] == 671_026_404_352
    assert done["parameters"]["active"] < 27e9
    assert done["parameters"]["mtp"] == 0


def test_buffers_of_dispatchers() -> None:
    from dysharp.model import layout_of
    from dysharp.specs import load_whole

    model = load_whole("deepseek-v3")
    wide, node, alone = layout_of("ep=64"), layout_of("ep=8"), layout_of("ep=1")
    assert buffer_bytes("alltoall", model, wide, 4096) == buffer_bytes("deepep", model, alone, 4096) == 0
    assert buffer_bytes("hybrid-ep", model, wide, 4096) == 2 * 64 * 4096 * 14336
    assert buffer_bytes("deepep", model, wide, 4096) == 2 * buffer_bytes("deepep", model, node, 4096)  # as many rows over NVLink as over NICs


def test_validate_reads_training_runs(tmp_path: Path, dysharp: Call) -> None:
    head = "id,model,hardware,gpus,precision,gbs,mbs,seq,tp,pp,ep,dp,ga,mem_gib,tok_s_gpu,tflops_gpu"
    path = tmp_path / "mine.csv"
    path.write_text(f"{head}\na,Llama3-8B,H100,8,BF16,64,1,8192,1,1,1,8,8,60,10000,515\nb,GLM-9,H100,8,BF16,64,1,8192,1,1,1,8,8,60,,\n")
    done = dysharp("validate", "--data", str(path))
    assert done.code == 0
    assert "no packaged model is called like" in " ".join(done.out.split())
    rows = json.loads(dysharp("validate", "--data", str(path), "--json").out)["rows"]
    found = [(row["id"], row["family"], row["judged"]) for row in rows]
    assert found == [("a", "step", True), ("a", "memory", True), ("b", "memory", False), ("a", "model-flops", True)]
    assert dysharp("validate", "--data", str(path), "--check").code == 1  # the memory is far from 60 GiB
    path.write_text("id,model,hardware,gpus,precision,gbs,mbs,seq,tp,pp,ep,dp\na,b\n")
    assert "row 1: found 2 columns, expected 12" in dysharp("validate", "--data", str(path)).err
