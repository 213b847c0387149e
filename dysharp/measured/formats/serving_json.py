"""Results of serving benchmarks, one row per run: JSON of `vllm bench serve`, benchmark_serving.py and `sglang.bench_serving` (one object or one a
line), of InferenceX (seconds, names without a unit), summaries of AIPerf, and the text block of `vllm bench serve`.

They name the client, not the server: GPU, engine, layout and formats are asked for, unless InferenceX states them. Lengths are means of what was
sent. A mean gap between chunks far above the time of a token means that a chunk holds several: drafts, which are asked for too.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from dysharp.base import AnyMapping, ByName, Cells, Rows
from dysharp.measured.formats.log import WORDS, Log, lacking, number, whole

NAME = "a result of a serving benchmark"
BLOCK = re.compile(r"=+ Serving Benchmark Result =+(.*?)\n={20,}", re.DOTALL)
LINES, SUMMARY, CONFIG = (WORDS[name] for name in ("serving_lines", "aiperf_records", "aiperf_asked"))
WORKER = ("tp", "attn_dp", "moe_tp", "moe_ep")
KNOWN = (
    "id", "where", "model", "hardware", "gpus", "engine", "engine_version", "mode", "precision", "gemm_quant", "moe_quant", "isl", "osl",
    "concurrency", "batch", "pp", *WORKER, *(f"{part}_{degree}" for part in "pd" for degree in ("workers", *WORKER)), "spec_decode", "note",
)  # fmt: skip
NEEDED = ("model", "hardware", "engine", "mode", "tp")
SEVERAL = 1.5
"""Gap between chunks over the time of a token from which a chunk holds several tokens."""


def fits(text: str) -> bool:
    """Whether a text is JSON with tokens of a benchmark, or has the text block."""
    keys = ("total_output_tokens", "framework", "inter_token_latency")
    return BLOCK.search(text) is not None or any(key in one for one in _objects(text) for key in keys)


def _objects(text: str) -> Rows:
    """Objects of JSON or of JSON lines; lines that are none are left out."""
    if not text.lstrip().startswith("{"):
        return []
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        found = []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return [_summary(one) if "input_config" in one else one for one in found if isinstance(one, dict)]


def _summary(one: ByName) -> ByName:
    """A summary of AIPerf with the keys of the others; its inter-token latency is the time per output token of a request."""
    records = one["records"] if isinstance(one.get("records"), dict) else one
    config, found = json.dumps(one["input_config"]), ByName(inter_token_latency=None)
    for name, (key, statistic) in SUMMARY.items():
        if isinstance(stated := records.get(name), dict):
            found[key] = stated.get(statistic)
    for key, pattern in CONFIG.items():
        if asked := re.search(pattern, config):
            found[key] = int(asked[1]) if key == "max_concurrency" else asked[1]
    return found


def read(text: str, given: Mapping[str, str]) -> Log:
    """Every run of a file."""
    models: list[Any] = re.findall(r"Namespace\(.*?\bmodel='([^']+)'", text)
    blocks: Rows = [
        {key: number(found[1]) for line, key in LINES.items() if (found := re.search(re.escape(line) + r":\s+(\S+)", block))}
        for block in BLOCK.findall(text)
    ]
    for block, model in zip(blocks, models, strict=False):
        block["model_id"] = model
    rows = [_row(n, one, given) for n, one in enumerate(blocks or _objects(text), start=1)]
    missing = {name: None for row in rows if not row["refused"] for name in lacking(NEEDED, row)}
    return Log(NAME, rows, tuple(missing), KNOWN)


def _value(one: AnyMapping, *keys: str) -> float | None:
    """The first of `keys` that holds a finite number above 0."""
    found = (one.get(key) for key in keys)
    return next((float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e15), None)


def _ms(one: AnyMapping, name: str) -> float | None:
    """Milliseconds of a median, else of a mean; without a unit in its name a time is in seconds."""
    ms, s = _value(one, f"median_{name}_ms", f"mean_{name}_ms"), _value(one, f"median_{name}", f"mean_{name}")
    return ms if ms is not None or s is None else 1e3 * s


def _row(n: int, one: AnyMapping, given: Mapping[str, str]) -> Cells:
    done, dp = _value(one, "completed"), one.get("dp_attention") in (True, "true")
    sent, got = _value(one, "total_input_tokens"), _value(one, "total_output_tokens")
    disagg = one.get("disagg")
    cells = dict.fromkeys(KNOWN, "") | {
        "id": f"serving-{n}", "where": "" if sent or "framework" not in one else "InferenceX",
        "model": str(one.get("model_id") or one.get("model") or "").rstrip("/"), "hardware": _text(one, "hw"),
        "engine": _text(one, "framework"), "precision": _text(one, "precision"),
        "mode": "" if disagg is None else "disagg" if disagg is True else "agg",
        "isl": whole(sent / done if sent and done else _value(one, "isl")), "osl": whole(got / done if got and done else _value(one, "osl")),
        "concurrency": whole(_value(one, "max_concurrency", "conc")), "tp": whole(_value(one, "tp")), "moe_ep": whole(_value(one, "ep")),
        "attn_dp": whole(_value(one, "tp")) if dp else "",
    } | dict(given)  # fmt: skip
    times = {name: ms for name in ("tpot", "ttft") if (ms := _ms(one, name))}
    row = cells | {f"{name}_ms": repr(times[name]) if name in times else "" for name in ("tpot", "ttft")}
    return row | {"model": _model(row["model"]), "refused": _refusal(one, row)}


def _text(one: AnyMapping, key: str) -> str:
    return str(one.get(key) or "").removeprefix("cluster:")


def _model(path: str) -> str:
    """A checkpoint's name; in a cache of Hugging Face the folder names it."""
    cached = re.search(r"models--([^/]+)", path)
    return cached[1].rpartition("--")[2] if cached else path.rpartition("/")[2] if path.startswith("/") else path


def _refusal(one: AnyMapping, row: Mapping[str, str]) -> str:
    """Why a run is no row, or "": the file marks it, or does not say what a row needs."""
    failed, asked, done = (_value(one, key) for key in ("failed", "num_prompts", "completed"))
    gap, token, chunk = _value(one, "mean_itl_ms"), _value(one, "mean_tpot_ms"), _value(one, "accept_length")
    reasons = {
        f"{failed or 0:.0f} requests failed": failed,
        f"{done or 0:.0f} of {asked or 0:.0f} requests completed": asked and (done or 0) < asked,
        f"sessions of the scenario {_text(one, 'scenario_type')}: no lengths of one request": one.get("scenario_type"),
        "no time per output token": not row["tpot_ms"],
        "an open loop (no concurrency): no number of users": not row["concurrency"] and not row["batch"],
        "a chunk holds several tokens, as with drafts, and spec_decode is not given": not row["spec_decode"]
        and ((gap and token and gap > SEVERAL * token) or (chunk and chunk > 1.01)),
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), "")
