"""`dysharp advise` and `dysharp validate --summary`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dysharp.measured.measurements import COLUMNS
from dysharp.measured.trust import family_errors

Call = Callable[..., Any]
SMALL = ("deepseek-v2-lite", "--tokens", "16", "--systems", "deepep", "--set", "deepep.n_sm=8")


def test_table_fits_and_names_what_it_rests_on(dysharp: Call) -> None:
    done = dysharp("advise", *SMALL, "--details")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 100
    tables = ("Ranking", "What limits deepep", "Load", "Tokens per GPU pair, placement eplb", "What if: one change")
    for part in (*tables, "DySHARP switches", "not measured"):
        assert part in done.out
    assert "software costs are charged" in done.out
    assert "paper forms charge no software cost" in done.out


def test_json(dysharp: Call) -> None:
    done = dysharp("advise", *SMALL, "--json")
    found = json.loads(done.out)
    assert list(found)[:5] == ["answer", "ranking", "unjudged", "limits", "what_if"]
    assert found["answer"][0].startswith("Run deepep: ")
    assert found["ranking"][0]["options"]["n_sm"] == 8
    assert "cluster hw-dgx-h100" in done.err


def test_markdown_is_made_of_whole_tables(dysharp: Call) -> None:
    out = dysharp("advise", *SMALL, "--markdown").out
    tables = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    assert len(tables) >= 5
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
        assert set(table[1]) <= set("|:- ")
    assert "### Ranking" in out


def test_warnings_are_printed(dysharp: Call) -> None:
    out = " ".join(dysharp("advise", *SMALL, "--gpus", "4").out.split())
    assert "warning: deepep-dispatch, deepep-combine: gpus 4 is outside the measured range" in out


def test_a_warning_is_printed_once_and_prefixes_are_single(dysharp: Call) -> None:
    given = ("deepseek-v3", "--tokens", "4", "--systems", "deepep,deepep-ll,hybrid-ep", "--set", "deepep.n_sm=20", "--set", "hybrid-ep.n_sm=16")
    out = " ".join(dysharp("advise", *given, "--markdown").out.split())
    assert out.count("GB per GPU") == 1
    assert out.count("rows_per_expert 1 is outside") == 1
    assert "warning: hybrid-ep: not measured on h100-sxm; its Dispatch and Combine were measured on b200, gb200" in out
    assert "Not run:" not in out
    assert "Dispatch FP8, Combine BF16, 20 SMs" in out


def test_a_large_machine_says_where_its_pairs_are(dysharp: Call) -> None:
    out = " ".join(dysharp("advise", *SMALL, "--cluster", "hw-gb200-nvl72", "--gpus", "16", "--details").out.split())
    assert "GPU pairs of 16 GPUs are not printed (at most 8); --json has them for up to 72 GPUs" in out


def test_errors_are_one_line(dysharp: Call) -> None:
    paper = ("deepseek-v3", "--cluster", "paper-nvl72")
    both = (*SMALL, "--markdown", "--json")
    for given, text in ((("deepseek-v9",), "unknown model"), (paper, "expected an hw-"), ((), "Missing argument"), (both, "--markdown and --json")):
        done = dysharp("advise", *given)
        assert (done.code, done.out) == (2, "")
        assert text in done.err
        assert len(done.err.splitlines()) == 1


def test_the_summary_is_what_the_bars_are_read_from(dysharp: Call, tmp_path: Path) -> None:
    ep = {"dtype": "fp8_e4m3", "ep": 8, "experts": 64, "hidden": 2048, "sms": 8, "tokens_per_rank": 16, "topk": 4}
    gemm = {"dtype": "bfloat16", "k": 4096, "kernel": "torch.nn.functional.linear", "m": 1024, "n": 4096, "timing": "cuda graph"}
    rows = [
        ("a", "ep_dispatch", "DeepEP-normal", ep, 45.0),
        ("b", "ep_combine", "DeepEP-normal", ep | {"dtype": "bf16"}, 50.0),
        ("c", "gemm_dense", "vLLM linear", gemm, 60.0),
    ]
    text = [",".join(COLUMNS)]
    for name, kind, system, config, value in rows:
        quoted = '"' + json.dumps(config).replace('"', '""') + '"'
        text.append(f"{name},{kind},{system},8xH100-SXM,{quoted},latency,{value},us,a source")
    data, out = tmp_path / "m.csv", tmp_path / "validated.toml"
    data.write_text("\n".join(text) + "\n")
    assert dysharp("validate", "--data", str(data), "--summary", str(out)).code == 0
    table = family_errors(out)
    assert set(table) == {("deepep-dispatch", "h100-sxm"), ("deepep-combine", "h100-sxm"), ("dense-gemm", "h100-sxm")}
    entry = table["deepep-dispatch", "h100-sxm"]
    assert (entry.n, entry.by, entry.ranges["tokens"], entry.ranges["sms"]) == (1, "program", (16, 16), (8, 8))
    assert table["dense-gemm", "h100-sxm"].by == "rate form"
