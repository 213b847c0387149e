"""How the framework of a row ran its step, and on which machine: dispatcher, graphs, overlap, casts. Rules hold for all rows of a source."""

import re

from dysharp.measured.measurements import Unsupported
from dysharp.measured.scope import GPUS
from dysharp.measured.training.rows import TrainingRow
from dysharp.measured.training.setting import BRIDGE, saving_of, tuned
from dysharp.specs import load_cluster
from dysharp.steps.machine import Machine
from dysharp.steps.practice import GRAPH_PARTS, WHOLE, Dispatcher, DType, Practice

SIMUMAX = "MooreThreads/SimuMax"
NEMO = "NVIDIA/NeMo@"
CLUSTERS = {
    "h100-sxm": "hw-dgx-h100-x8", "h200-sxm": "hw-dgx-h200-x8", "h800": "hw-dgx-h800-x8", "b200": "hw-dgx-b200-x8", "gb200": "hw-gb200-nvl72-x2",
    "b300": "hw-hgx-b300-x8", "gb300": "hw-gb300-nvl72-x2", "mi355x": "hw-mi355x-x2", "mi300x": "hw-mi300x-x2",
}  # fmt: skip
"""GPU of a row -> packaged cluster."""
NODE = 8
RACKS = ("gb200", "gb300")
"""GPUs in NVLink domains of 72, in which a requested DeepEP becomes alltoall (Megatron-Bridge issue 5992)."""
DTYPES: dict[str, DType] = {"bf16": "bf16", "fp8": "fp8", "fp8-cs": "fp8", "fp8-mx": "mxfp8", "mxfp8": "mxfp8", "nvfp4": "fp4"}
NEW_FROM = (26, 6)
"""Container from which Megatron-Bridge's MoE recipes on Blackwell replay whole iterations and overlap EP communication, as all its presets of 26.06
with known settings do, unless a row names scopes."""
BLACKWELL = (*RACKS, "b200", "b300")
NAMELESS = "25.11"
"""Container whose rows partly name no preset; they run as `PRESETS`."""
PRESETS = {
    ("deepseek", "gb200"): (("moe_router", "moe_preprocess"), False), ("qwen3_235b", "gb200"): (("attn", "moe_router", "moe_preprocess"), False),
    ("qwen3_235b", "b200"): ((), True), ("qwen3_30b", "h100-sxm"): ((), True),
}  # fmt: skip
"""(Beginning of a model's name, GPU) -> graphs and overlap of EP (Megatron-Bridge 767255d2 and d19cb73c, scripts/performance/configs)."""


def machine_of(row: TrainingRow) -> tuple[str, Machine]:
    """(GPU, machine) of a row. Raises `Unsupported`."""
    gpu = next((name for text, name in GPUS if text in row.text("hardware").upper()), "")
    if gpu not in CLUSTERS:
        raise Unsupported(f"no packaged machine is called like {row.text('hardware')!r}")
    return gpu, Machine(load_cluster(CLUSTERS[gpu]))


def practice_of(row: TrainingRow, gpu: str, moe: bool) -> Practice:
    """How a row ran. Raises `Unsupported` for a precision without a rate."""
    precision = row.text("precision").lower().replace("_", "-")
    if precision not in DTYPES:
        raise Unsupported(f"no GEMM rate for the precision {row.text('precision')!r}")
    own, bridge = row.text("source").startswith(SIMUMAX), row.text("source").startswith(BRIDGE)
    recipe = moe and bridge and gpu in BLACKWELL
    graphs, overlaps = _preset(row, gpu) if moe and bridge else ((), False)
    return Practice(
        dtype=DTYPES[precision], dispatcher=_dispatcher(row, gpu, bridge) if moe else "", overlap_ep=overlaps or (moe and _overlaps(row, recipe)),
        overlap_tp=not own and not moe, overlap_dp=not own, plain_ddp=own, graphs=graphs or _graphs(row, recipe), counts=not own, host=True,
        frozen=tuned(row), recompute=saving_of(row).recompute, context="a2a" if own else "p2p",
    )  # fmt: skip


def _dispatcher(row: TrainingRow, gpu: str, bridge: bool) -> Dispatcher:
    """The dispatcher that a row names; without a name Hybrid-EP in racks, DeepEP over nodes, and alltoall, Megatron's default, inside a node."""
    named = row.text("dispatcher").lower()
    if "hybridep" in named or "hybrid-ep" in named:
        return "hybrid-ep"
    if "deepep" in named:
        return "alltoall" if gpu in RACKS else "deepep"
    if "alltoall" in named or not bridge:
        return "alltoall"
    return "hybrid-ep" if gpu in RACKS else "deepep" if row.degree("ep") * row.degree("tp") > NODE else "alltoall"


def _preset(row: TrainingRow, gpu: str) -> tuple[tuple[str, ...], bool]:
    """Graphs and overlap of a row that should name a preset and does not."""
    if row.text("note") or not row.text("software").startswith(NAMELESS):
        return (), False
    name = row.text("model").lower()
    return next((found for (start, of), found in PRESETS.items() if gpu == of and name.startswith(start)), ((), False))


def _overlaps(row: TrainingRow, recipe: bool) -> bool:
    named = row.text("dispatcher").lower()
    return "a2a_overlap" in named or "overlap on" in named or (recipe and is_new(row))


def is_new(row: TrainingRow) -> bool:
    """Whether a row is of Megatron-Bridge's recipe functions (from container 26.06 on), which name neither graphs nor overlap."""
    release = re.match(r"(\d+)\.(\d+)", row.text("software"))
    recipe = re.search(r"recipe (at |[a-z0-9_]+_config)", f"{row.text('note')} {row.text('software')}")
    return recipe is not None and (release is None or (int(release[1]), int(release[2])) >= NEW_FROM)


def _graphs(row: TrainingRow, recipe: bool) -> tuple[str, ...]:
    """Parts that graphs replay."""
    note = row.text("note")
    if "cuda_graph_impl=none" in note.replace('"', ""):
        return ()
    if WHOLE in note:
        return (WHOLE,)
    names = tuple(part for part in GRAPH_PARTS if re.search(rf"\b{part}\b", note.partition("graph")[2]))
    if names:
        return names
    return (WHOLE,) if recipe and is_new(row) else ()
