"""Training logs of torchtitan: one row per log. `tps` counts tokens of one GPU a second, so a step takes batch x sequence / (GPUs x tps)."""

import re
from collections.abc import Mapping
from statistics import median

from dysharp.measured.formats.log import COLOUR, FEWEST, TRAINED, Log, lacking, number, whole

NAME = "a log of torchtitan"
STEP = re.compile(r"step:\s+\d+\s+loss:.*?tps: ([\d,]+)\s+tflops: ([\d.,]+)")
MESH = re.compile(r"device mesh with parallelism: (.+)")
BATCH = re.compile(r"local batch size (\d+), global batch size (\d+), gradient accumulation steps (\d+), sequence length (\d+)")
GPU = re.compile(r"(?:CUDA|HIP) capacity: (.+?) with")
MODEL = re.compile(r"Building (\w+ [\w.-]*\d[\w.-]*)\s*$", re.MULTILINE)
OTHERS = ("cp", "fsdp", "ga", "vpp", "recompute", "routing", "note", "fabric", "dispatcher")
DTYPES = (("mxfp8", "mxfp8"), ("float8", "fp8"), ("training.dtype=bfloat16", "bf16"), ("mixed_precision_param=bfloat16", "bf16"))
"""What a log says -> precision; the first that it says counts."""


def fits(text: str) -> bool:
    """Whether a text has a step of torchtitan."""
    return STEP.search(COLOUR.sub("", text)) is not None


def read(text: str, given: Mapping[str, str]) -> Log:
    """The run of a log."""
    plain = COLOUR.sub("", text)
    steps = [(number(tps), number(tflops)) for tps, tflops in STEP.findall(plain)][1:]
    cells = dict.fromkeys((*TRAINED, *OTHERS), "")
    if found := MESH.search(plain):
        mesh = {name: int(n) for name, n in re.findall(r"(\w+)=(\d{1,6})\b", found[1])}
        dp = mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
        degrees = {name: mesh.get(name, 1) for name in ("pp", "cp", "tp", "ep")}
        cells |= {name: str(n) for name, n in degrees.items()} | {"dp": str(dp), "fsdp": str(mesh.get("dp_shard", 1))}
        cells["gpus"] = str(dp * degrees["pp"] * degrees["cp"] * degrees["tp"])
    if found := BATCH.search(plain):
        cells |= dict(zip(("mbs", "gbs", "ga", "seq"), found.groups(), strict=True))
    for name, pattern in (("hardware", GPU), ("model", MODEL)):
        if found := pattern.search(plain):
            cells[name] = found[1]
    cells["precision"] = next((dtype for word, dtype in DTYPES if word in plain.lower()), "")
    row = {"id": "torchtitan-1", "source": "log of torchtitan", **cells, **given}
    rates, tflops = [a for a, _ in steps if a], [b for _, b in steps if b]
    n = [int(row[name]) if row[name].isdigit() else 0 for name in ("gbs", "seq", "gpus")]
    row["refused"] = "" if len(rates) >= FEWEST else f"found {len(steps) + 1} steps, expected {FEWEST} after the first"
    row["step_s"] = repr(n[0] * n[1] / (n[2] * median(rates))) if rates and all(n) else ""
    row["tok_s_gpu"], row["tflops_gpu"] = (whole(median(values)) if values else "" for values in (rates, tflops))
    return Log(NAME, [row], lacking(TRAINED, row), tuple(cells))
