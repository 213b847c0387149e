"""Training logs of Megatron-LM and what is built on it (Primus, Megatron-DeepSpeed): one row per log, the median of its steady iterations.

Layout, batch and precision are Megatron's printed arguments. The first printed iteration, and those with skipped or NaN steps, do not count.
Of a pair "now/average" (Primus) the first counts. Milliseconds become seconds.
"""

import re
from collections.abc import Mapping
from statistics import median

from dysharp.base import Cells
from dysharp.measured.formats.log import COLOUR, FEWEST, TRAINED, WORDS, Log, lacking, number

NAME = "a log of Megatron-LM"
STEP = re.compile(r"iteration\s+\d+/\s*\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+)(.*)")
BATCH = re.compile(r"global batch size:\s+(\d+)")
RATE = re.compile(r"(?:TFLOP/s/GPU\)|TFLOPs): ([\d.]+)")
BAD = re.compile(r"number of (skipped|nan) iterations:\s+[1-9]")
ARGUMENT = re.compile(r"^\W*(?:.*\s)?([a-z][a-z0-9_]+) \.{3,} (.+?)\s*$", re.MULTILINE)
ARGUMENTS: Cells = WORDS["megatron_arguments"]
"""Column -> argument."""
TEXTS = ("recompute", "dispatcher", "software", "routing", "note", "fabric", "a2a_overlap", "fsdp")


def fits(text: str) -> bool:
    """Whether a text has an iteration of Megatron-LM."""
    return "elapsed time per iteration (ms):" in text


def read(text: str, given: Mapping[str, str]) -> Log:
    """The run of a log."""
    plain = COLOUR.sub("", text)
    steps = [found for found in STEP.finditer(plain)]
    good = [found for found in steps[1:] if not BAD.search(found[2])]
    told = {found[1]: found[2] for found in reversed([*ARGUMENT.finditer(plain)])}  # DeepSpeed prints some again, of one node
    cells = dict.fromkeys((*TRAINED, *ARGUMENTS, *TEXTS), "") | {column: told.get(name, "") for column, name in ARGUMENTS.items()}
    cells |= _derived(told)
    if batch := BATCH.search(plain):
        cells["gbs"] = batch[1]
    if told and not cells["ep"]:  # older than experts
        cells["ep"] = "1"
    cells = {name: value if value.isdigit() or name in ("precision", *TEXTS) else "" for name, value in cells.items()}
    degrees = [int(cells[name] or 0) for name in ("gpus", "tp", "pp")]
    if not cells["dp"] and all(degrees) and degrees[0] % (shared := degrees[1] * degrees[2] * int(cells["cp"] or 1)) == 0:
        cells["dp"] = str(degrees[0] // shared)
    times = [ms for found in good if (ms := number(found[1]))]
    rates = [rate for found in good if (line := RATE.search(found[2])) and (rate := number(line[1]))]
    fault = "" if len(times) >= FEWEST else f"found {len(steps)} iterations, expected {FEWEST} after the first, none of them skipped"
    row = {"id": "megatron-1", "source": "log of Megatron-LM", **cells, **given, "refused": fault}
    row |= {"step_s": repr(median(times) / 1e3) if times else "", "tflops_gpu": repr(median(rates)) if rates else ""}
    return Log(NAME, [row], lacking(TRAINED, row), tuple(cells))


def _derived(told: Mapping[str, str]) -> dict[str, str]:
    """Precision, recomputation and dispatcher as columns say them."""
    fp8, deepep = told.get("fp8", "None"), told.get("moe_enable_deepep") == "True"
    backend = told.get("moe_token_dispatcher_type", "").replace("flex", told.get("moe_flex_dispatcher_backend", "deepep"))
    flags = [name for name in ("bf16", "fp16") if told.get(name) == "True"]
    kept = told.get("recompute_granularity", "None")
    modules = re.findall(r"\w+", told.get("recompute_modules", "").replace("None", ""))
    recompute = ",".join(modules) if kept == "selective" and modules else "" if kept == "None" else kept
    part = kept == "full" and told.get("recompute_num_layers", "None") not in ("None", told.get("num_layers"))
    return {
        "precision": "" if not flags else "fp8" if fp8 not in ("None", "False") else flags[0],
        "recompute": f"{told['recompute_num_layers']} layers" if part else recompute,
        "dispatcher": "" if told.get("num_experts", "None") == "None" else "deepep" if deepep else backend,
        "a2a_overlap": "on" if told.get("overlap_moe_expert_parallel_comm") == "True" else "",
    }  # fmt: skip
