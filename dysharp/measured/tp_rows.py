"""Rows of a table of tensor-parallel measurements (columns `COLUMNS`) as measurements."""

import json
import re
from collections.abc import Mapping

COLUMNS = (
    "id", "source", "where", "op", "implementation", "inswitch", "hardware", "gpus", "shape", "bytes", "dtype", "ctas", "metric", "value", "unit",
    "software", "note",
)  # fmt: skip
_MULTIMEM = {name: f"multimem_{name}" for name in ("all_reduce", "reduce_scatter", "all_gather")}
_NORMS = {
    "RMSNorm full": "rms_norm",
    "RMSNorm on 1/8 of the tokens": "rms_norm",
    "all_reduce + add + RMSNorm fused": "allreduce_rms_norm_fused",
    "all_reduce + RMSNorm (simple fusion)": "allreduce_rms_norm",
}
TIMING = "two CUDA events per call, L2 cleared before"
"""How rows without a named software were timed (TokenWeave)."""
_PART = re.compile(r"on 1/(\d+) of the tokens")


def cells_of(row: Mapping[str, str]) -> dict[str, str]:
    """One row as cells of `measurements.COLUMNS`.

    Kinds that a family predicts: multimem collectives, NCCL's, and norms. Any other row has its op as its kind, and no family.
    """
    op, how, torch = row["op"], row["implementation"], "torch" in row["implementation"]
    kind = _NORMS.get(op, op)
    if how.startswith("multimem") and op in _MULTIMEM:
        kind = _MULTIMEM[op]
    elif how.startswith(("NCCL", "torch.distributed NCCL")) and op in _MULTIMEM:
        kind = f"torch_nccl_{op}" if torch else f"nccl_{op}"
    part = _PART.search(op)
    config: dict[str, str | int] = {"dtype": row["dtype"] or "bf16", "timing": TIMING if not row["software"] else ""}
    for name in ("bytes", "gpus", "ctas"):
        if row[name].isdecimal():
            config[name] = int(row[name]) // (int(part[1]) if part and name == "bytes" else 1)
    metric = "latency" if row["metric"] == "time" else f"whole model: {row['metric']}"
    kept = {name: row[name] for name in ("id", "hardware", "value", "unit")}
    return kept | {
        "kind": kind,
        "system": how or op,
        "config_json": json.dumps(config),
        "metric": metric,
        "source": f"{row['source']} {row['where']}",
    }
