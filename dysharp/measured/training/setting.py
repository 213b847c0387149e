"""What a training run says: its row of a CSV, its whole model, layout, precision and recomputation, and how its framework ran the step."""

import re
from dataclasses import replace

from dysharp.base import ConfigError, Texts, frozen
from dysharp.costs import Machine
from dysharp.measured.measurements import GPUS, TABLES, Unsupported
from dysharp.measured.run_rows import Columns, Run
from dysharp.model import CONVENTIONS, RECIPES, Convention, Layout, Recipe, check_layout
from dysharp.specs import WholeModel, load_cluster, load_whole
from dysharp.training import GRAPH_PARTS, WHOLE, Dispatcher, DType, TrainingRecipe
from dysharp.training.memory import FULL, MODULES, Saving


@frozen
class TrainingRow(Run):
    """One measured run of training."""

    columns = Columns(
        "training",
        texts=(
            "id", "source", "model", "hardware", "precision", "recompute", "dispatcher", "software", "routing", "check", "note", "fabric",
            "a2a_overlap",
        ),
        degrees=("gpus", "gbs", "mbs", "seq", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "fsdp", "ga", "layers"),
        numbers=("tok_s_gpu", "tflops_gpu", "step_s", "mem_gib"),
        required=("id", "model", "hardware", "gpus", "precision", "gbs", "mbs", "seq", "tp", "pp", "ep", "dp"),
    )

    def is_of(self, source: str) -> bool:
        """Whether a row comes from a repository."""
        return self.text("source").startswith(source)


KEPT_DENSE = 1
"""Dense layers that runs of fewer layers keep (SimuMax's cases of DeepSeek models)."""
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge"
AUTOMODEL = "NVIDIA-NeMo/Automodel"
CONVENTION_OF = {AUTOMODEL: "megatron-no-mtp", "NVIDIA/NeMo": "nemo-24.07", "AI-Hypercomputer": "maxtext"}
"""Start of a row's source -> its convention of model FLOPs."""
GATE_OF_SILU = ("25.09", "25.11", "26.02", "26.02.01", "26.04", "26.04.01")
"""Containers before Megatron-Bridge counted every gate."""
CHUNKS = {"llama3-70b": 5}
"""Chunks per rank of a model's presets of pretraining in stages (Megatron-Bridge, scripts/performance/configs/llama), for rows that name neither."""


@frozen
class Setting:
    """What a run trains, and how."""

    model: WholeModel
    layout: Layout
    sequence: int
    recipe: Recipe
    saving: Saving


def model_of(row: TrainingRow) -> WholeModel:
    """The model of a row, cut to its `layers`; without MTP where the row or its framework trains none. Raises `Unsupported`."""
    model = load_whole(row.model)
    layers, name = row.degrees["layers"], row.text("model").lower()
    if "w/o mtp" in name or not row.is_of(BRIDGE):
        model = replace(model, mtp=0)
    elif model.stack:
        model = replace(model, mtp=2 * model.mtp)  # its recipes predict with one layer twice (recipes/nemotronh, mtp_use_repeated_layer)
    if not layers or layers == model.n_layers:
        return model
    if model.stack:
        raise Unsupported(f"found {layers} layers, expected the {model.n_layers} of its stack")
    if model.layer is None:
        return replace(model, dense_layers=layers)
    dense = min(model.dense_layers, KEPT_DENSE)
    return replace(model, dense_layers=dense, layer=replace(model.layer, n_layers=max(layers - dense, 1)))


def _layout_of_row(row: TrainingRow) -> Layout:
    """The layout of a row. Raises `Unsupported` where its numbers contradict each other, or do not say how many micro-batches a step has, and
    ConfigError where they are no layout.
    """
    of, given, step = row.degree, row.degrees["ga"], row.degrees["gbs"]
    dp = row.degrees["dp"] or max(1, of("gpus") // (of("tp") * of("pp") * of("cp")))
    batches, rest = divmod(step, dp * of("mbs")) if step else (given, 0)
    cut = row.is_of(AUTOMODEL) and of("pp") > 1  # its pipeline cuts the batch of a turn
    nameless = row.is_of(BRIDGE) and of("pp") > 1 and not row.text("note")
    chunks = row.degrees["vpp"] or (CHUNKS.get(row.model, 1) if nameless else 1)
    if rest or not batches or (given not in (0, batches) and not cut):
        raise Unsupported(f"found gbs {step or '-'}, mbs {of('mbs')}, dp {dp}, ga {given or '-'}, expected gbs = mbs x dp x ga")
    layout = Layout(
        tp=of("tp"), pp=of("pp"), vpp=chunks, ep=of("ep"), etp=of("etp"), cp=of("cp"), dp=dp, micro_batch=of("mbs"),
        micro_batches=batches, fsdp=max(1, of("fsdp")) * (of("cp") if of("fsdp") > 1 else 1),
    )  # fmt: skip
    if layout.gpus != of("gpus"):
        raise Unsupported(f"found {of('gpus')} GPUs, expected tp x pp x cp x dp = {layout.gpus}")
    return layout


def _stages_of(row: TrainingRow, model: WholeModel, layout: Layout) -> str:
    """The pipeline of a row as a layout string; "": equal chunks. Megatron-Bridge fills chunks evenly where the layers, with embedding and head as a
    layer each, divide; otherwise the first and the last chunk have the rest (its recipes of Qwen3 and DeepSeek models).
    """
    if named := re.search(r"pp_layout=([^; ]+)", row.text("note")):
        return named[1]
    n, layers = layout.pp * layout.vpp, model.n_layers
    if n == 1 or layers % n == 0:
        return ""
    end = "m" * model.mtp + "L"
    if (layers + 2) % n == 0:
        each = (layers + 2) // n
        return f"Et*{each - 1}|" + f"(t*{each}|)*{n - 2}" * (n > 2) + f"t*{each - 1}{end}"
    each = -(-layers // n)
    last = max(0, layers - each * (n - 1))
    if layers < each * (n - 2) + last:
        raise Unsupported(f"found {n} chunks (pp x vpp), expected at most {layers} for {layers} layers")
    return f"Et*{layers - each * (n - 2) - last}|" + f"(t*{each}|)*{n - 2}" * (n > 2) + (f"t*{last}" if last else "") + end


def setting_of(row: TrainingRow) -> Setting:
    """What a row trains, and how. Raises `Unsupported` with the reason where it does not say so."""
    if not row.degrees["seq"]:
        raise Unsupported("found no seq")
    model, precision = model_of(row), row.text("precision").lower().replace("_", "-")
    try:
        layout = _layout_of_row(row)
        layout = replace(layout, stages=_stages_of(row, model, layout))
        if precision not in DTYPES:
            raise Unsupported(f"no recipe for the precision {row.text('precision')!r}")
        check_layout(model, layout, row.degree("seq"))
    except ConfigError as error:
        raise Unsupported(str(error)) from None
    return Setting(model, layout, row.degree("seq"), RECIPES["bf16" if precision == "bf16" else "fp8"], _saving_of(row))


WORDS = dict.fromkeys(("none", "(none)", "none named", "see recipe defaults"), "") | {
    "selective": "core_attn", "norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts",
}  # fmt: skip
"""Words of rows for no recomputation, for Megatron-LM's default set, and for its modules."""


def _saving_of(row: TrainingRow) -> Saving:
    """Recomputation of a row. Raises `Unsupported` for a set that is not modelled."""
    names = [name.strip() for name in row.text("recompute").split(",")]
    if names == [""] and row.is_of(AUTOMODEL):
        names = [FULL]  # activation_checkpointing of its benchmark configurations
    if names == [""] and row.is_of(BRIDGE) and row.model == "deepseek-v3":
        names = ["mla_up_proj"]  # the default of its recipe
    names = [WORDS.get(name, name.removeprefix("selective ")) for name in names]
    names = [name for name in names if name]
    if any(name not in (*MODULES, FULL) for name in names):
        raise Unsupported(f"recomputation {row.text('recompute')!r} is not modelled")
    return Saving(recompute=tuple(names))


def convention_of_row(row: TrainingRow) -> Convention:
    """What the framework of a row counts as model FLOPs."""
    source = row.text("source")
    outside = next((name for start, name in CONVENTION_OF.items() if source.startswith(start)), "")
    if outside == "megatron-no-mtp" and _tuned(row):
        return CONVENTIONS["automodel-lora"]
    return CONVENTIONS[outside or (_of_bridge(row) if source.startswith(BRIDGE) else "megatron")]


def _of_bridge(row: TrainingRow) -> str:
    if _tuned(row):
        return "bridge-lora"
    if "w/o mtp" in row.text("model").lower():
        return "megatron-no-mtp"
    return "bridge-26.04" if row.text("software").split(" ")[0] in GATE_OF_SILU else "megatron"


def _tuned(row: TrainingRow) -> bool:
    """Whether a row trains adapters of frozen weights."""
    return "lora" in row.text("note").lower()


SIMUMAX = "MooreThreads/SimuMax"
NEMO = "NVIDIA/NeMo@"
NODE = 8
RACKS = ("gb200", "gb300")
"""GPUs in NVLink domains of 72, in which a requested DeepEP becomes alltoall (Megatron-Bridge issue 5992)."""
DTYPES: dict[str, DType] = {"bf16": "bf16", "fp8": "fp8", "fp8-cs": "fp8", "fp8-sc": "fp8", "fp8-mx": "mxfp8", "mxfp8": "mxfp8", "nvfp4": "fp4"}
NEW_FROM = (26, 6)
"""Container from which Megatron-Bridge's MoE recipes on Blackwell replay whole iterations and overlap EP communication, as all its presets of 26.06
with known settings do; scopes that a recipe names first are replaced (perf_recipes/deepseek/common.py). Hybrid stacks have no such plan."""
BLACKWELL = (*RACKS, "b200", "b300")
NAMELESS = "25.11"
"""Container whose rows partly name no preset; they run as `PRESETS`."""
LIBRARY = "Bridge "
"""Start of the software of rows that ran library recipes of DeepSeek models, in which `moe_router_fusion` is off (recipes/moonlight)."""
PRESETS = {
    ("deepseek", "gb200"): (("moe_router", "moe_preprocess"), False), ("qwen3_235b", "gb200"): (("attn", "moe_router", "moe_preprocess"), False),
    ("qwen3_235b", "b200"): ((), True), ("qwen3_30b", "h100-sxm"): ((), True),
}  # fmt: skip
"""(Beginning of a model's name, GPU) -> graphs and overlap of EP (Megatron-Bridge 767255d2 and d19cb73c, scripts/performance/configs)."""


def machine_of(row: TrainingRow) -> tuple[str, Machine]:
    """(GPU, machine) of a row. Raises `Unsupported`."""
    gpu = next((name for text, name in GPUS if text in row.text("hardware").upper()), "")
    if gpu not in TABLES["training_clusters"]:
        raise Unsupported(f"no packaged machine is called like {row.text('hardware')!r}")
    clusters = TABLES["training_clusters"] | (TABLES["efa_clusters"] if "EFA" in row.text("fabric").upper().split() else {})
    return gpu, Machine(load_cluster(clusters[gpu]))


def training_recipe_of(row: TrainingRow, gpu: str, moe: bool) -> TrainingRecipe:
    """How a row ran. Raises `Unsupported` for a precision without a rate."""
    precision = row.text("precision").lower().replace("_", "-")
    if precision not in DTYPES:
        raise Unsupported(f"no GEMM rate for the precision {row.text('precision')!r}")
    own, bridge = row.is_of(SIMUMAX), row.is_of(BRIDGE)
    hybrid = bridge and bool(load_whole(row.model).stack)
    recipe = moe and bridge and gpu in BLACKWELL and not hybrid
    graphs, overlaps = _preset(row, gpu) if moe and bridge else ((), False)
    return TrainingRecipe(
        dtype=DTYPES[precision], dispatcher=_dispatcher(row, gpu, bridge, hybrid) if moe else "",
        overlap_ep=overlaps or (moe and _overlaps(row, recipe)), overlap_tp=not own and not moe, overlap_dp=not own, plain_ddp=own,
        graphs=graphs or _graphs(row, recipe), counts=not own, host=True, frozen=_tuned(row),
        recompute=_saving_of(row).recompute, context="a2a" if own else "p2p", router_fusion=not row.text("software").startswith(LIBRARY),
    )  # fmt: skip


def _dispatcher(row: TrainingRow, gpu: str, bridge: bool, hybrid: bool) -> Dispatcher:
    """The dispatcher that a row names; without a name Hybrid-EP in racks, DeepEP over nodes, and alltoall, Megatron's default, inside a node.

    Presets of hybrid stacks name the backend alone: the type stays that of the library recipe, which for latent experts is alltoall.
    """
    named = re.sub(r"\W|_", "", row.text("dispatcher").lower()).replace("a2a", "alltoall").replace("flex", "deepep")  # flex's default backend
    if hybrid and load_whole(row.model).latent_experts and row.text("note").startswith("preset"):
        return "alltoall"
    if "hybridep" in named:
        return "hybrid-ep"
    if "uccl" in named:
        return "uccl"
    if "deepep" in named:
        return "alltoall" if gpu in RACKS else "deepep"
    if named and "alltoall" not in named and not bridge:
        raise Unsupported(f"no closed form of the dispatcher {named!r}, expected alltoall, deepep, hybridep or uccl")
    if "alltoall" in named or not bridge:
        return "alltoall"
    return "hybrid-ep" if gpu in RACKS else "deepep" if row.degree("ep") * row.degree("etp") > NODE else "alltoall"


def _preset(row: TrainingRow, gpu: str) -> tuple[Texts, bool]:
    """Graphs and overlap of a row that should name a preset and does not."""
    if row.text("note") or not row.text("software").startswith(NAMELESS):
        return (), False
    name = row.text("model").lower()
    return next((found for (start, of), found in PRESETS.items() if gpu == of and name.startswith(start)), ((), False))


def _overlaps(row: TrainingRow, recipe: bool) -> bool:
    named = f"{row.text('dispatcher')} {row.text('note')}".lower()
    told = any(words in named for words in ("a2a_overlap", "overlap on", "1f1b overlap"))
    return told or row.text("a2a_overlap") == "on" or (recipe and _is_new(row))


def _is_new(row: TrainingRow) -> bool:
    """Whether a row is of Megatron-Bridge's recipe functions (from container 26.06 on), which name neither graphs nor overlap."""
    release = re.match(r"(\d+)\.(\d+)", row.text("software"))
    recipe = re.search(r"recipe (at |[a-z0-9_]+_config)", f"{row.text('note')} {row.text('software')}")
    return recipe is not None and (release is None or (int(release[1]), int(release[2])) >= NEW_FROM)


def _graphs(row: TrainingRow, recipe: bool) -> Texts:
    """Parts that graphs replay."""
    note = row.text("note")
    if "cuda_graph_impl=none" in note.replace('"', ""):
        return ()
    if WHOLE in note or (recipe and _is_new(row)):
        return (WHOLE,)
    scopes = re.split('graph|"transformer_engine"', note.lower(), maxsplit=1)[1:]
    return tuple(part for part in GRAPH_PARTS if re.search(rf"\b{part}\b", "".join(scopes)))
