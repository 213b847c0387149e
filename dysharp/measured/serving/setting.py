"""What a serving run says: its model and formats, machine, layouts, engine rules, users and lengths."""

import re
from dataclasses import replace

from dysharp.base import Cells, ConfigError, frozen
from dysharp.costs import machine_of
from dysharp.measured.measurements import TABLES, Unsupported
from dysharp.measured.run_rows import Columns, Run
from dysharp.model import Formats, StepBatch, formats_of, prompt_batch, published
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.layout import ServeLayout
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import WholeModel, list_clusters, load_cluster, load_whole

STEPS = ("decode only", "prefill only")
"""Modes of rows that measure steps without a scheduler: tokens per second of a GPU with `batch` requests (tokens of prompts) on each."""
MODES = ("agg", "disagg", *STEPS)
"""Prefill and decode on the same GPUs, disaggregated, and one of them alone."""


@frozen
class ServingRow(Run):
    """One measured run of serving."""

    columns = Columns(
        "serving",
        texts=(
            "id", "source", "where", "quality", "engine", "engine_version", "model", "hardware", "mode", "precision", "gemm_quant", "moe_quant",
            "measured", "spec_decode", "note",
        ),
        degrees=(
            "gpus", "isl", "osl", "concurrency", "batch", "tp", "pp", "attn_dp", "moe_tp", "moe_ep", "p_workers", "p_tp", "p_attn_dp", "p_moe_tp",
            "p_moe_ep", "d_workers", "d_tp", "d_attn_dp", "d_moe_tp", "d_moe_ep",
        ),
        numbers=("ttft_ms", "tpot_ms", "out_tok_s_gpu", "in_tok_s_gpu"),
        required=("id", "engine", "model", "hardware", "mode", "isl", "osl", "concurrency", "tp", "tpot_ms"),
    )  # fmt: skip

    @classmethod
    def modelled(cls, cells: Cells) -> bool:
        """Whether the mode of a row is known."""
        return cells["mode"] in MODES

    @property
    def step_ms(self) -> float | None:
        """Time of a step, measured; with drafts, of all tokens that it accepts."""
        rate = self.numbers["out_tok_s_gpu" if self.text("mode") == STEPS[0] else "in_tok_s_gpu"]
        if self.text("mode") not in STEPS or not rate or not self.degrees["batch"]:
            return None
        return self.degrees["batch"] * (1 + self.acceptance) / rate * 1e3

    @property
    def drafts(self) -> int:
        """Drafts of a step and request, where a row says so ("MTP 1"), else 0."""
        found = re.search(r"(?:MTP|EAGLE)[ -]?(\d)(?!\d| ?%)", self.text("spec_decode"), re.IGNORECASE)
        return int(found[1]) if found else 0

    @property
    def acceptance(self) -> float:
        """Part of drafts that a row with one draft says are accepted; 0 without drafts."""
        found = re.search(r"MTP (\d+) % acceptance", self.text("spec_decode"))
        return int(found[1]) / 100 if found else 0.0


FP8 = ("fp8", "fp8_block", "fp8_static", "fp8_ootb")
PERIODS = (2, 4, 8)
"""Numbers of domains of packaged clusters."""
BLOCK = 128
"""Values of a block of scales (DeepSeek-V3, arXiv 2412.19437 section 3.3)."""
RATIO = 0.8
"""Least over longest length of InferenceX's random prompts and answers (utils/bench_serving); the mean is 0.9 of the nominal length."""
FROM_NOTHING = "sgl-cookbook|token_position"
"""Sources whose lengths are uniform from nothing to twice their mean (SGLang's bench_serving; InferenceX, benchmark_serving_random.py)."""
DRAWN_TOKEN_US = 3.3
"""`Engine.token_us` of drawn ids, whose words no tokenizer has seen (docs/notebook/2026-11-28-prompt-time-found.md)."""
ANSWERED = 20
"""`Engine.answered` of InferenceX's runs with TensorRT-LLM: `stream_interval` of decode workers (NVIDIA/srt-slurm, recipes/trtllm)."""
ACCEPTANCE = 0.8
"""Part of drafts that is accepted where a row does not say it (DeepSeek-R1 with one draft: 81 to 83 %, vllm PR #12755)."""
MTP_OF_VLLM = "nightly 2026-02", 0.04
"""A build of vLLM whose MTP layer drafts nearly in vain, and the part of its drafts that is accepted (vllm PR #36561: in March 2026 DeepSeek-V3 makes
1.04 tokens a step with one draft at temperature 0; issue #33497, PR #41655)."""

@frozen
class ServeSetting:
    """What a run serves. `decode` is the decode worker of a disaggregated run. `ratio`: least over longest length."""

    replica: Replica
    engine: Engine
    scenario: Scenario
    ratio: float
    rounds: int
    decode: Replica | None = None
    workers: tuple[int, int] = (1, 1)
    median: bool = False
    """The row has medians over requests, else means."""


def setting_of(row: ServingRow) -> ServeSetting:
    """What a row serves. Raises `Unsupported` with the reason where the row does not say what it serves, or nothing models it."""
    if row.text("mode") not in ("agg", "disagg"):
        raise Unsupported(f"mode {row.text('mode')!r}")
    if not all(row.degrees[name] for name in ("isl", "osl")) or not (row.degrees["concurrency"] or row.degrees["batch"]):
        raise Unsupported("no length of prompts or answers, or no number of users")
    try:
        engine = engine_of(re.sub(r"[^a-z]", "", row.text("engine").lower()).replace("tensorrtllm", "trtllm"))
        return _disaggregated(row, engine) if row.text("mode") == "disagg" else _together(row, engine)
    except ConfigError as error:
        raise Unsupported(str(error)) from None


def step_setting_of(row: ServingRow) -> tuple[Replica, StepBatch, bool]:
    """The replica and the batch of a row that measures steps, and whether two batches overlap. Raises `Unsupported`."""
    degrees, engine = row.degrees, engine_of("sglang")
    if not degrees["isl"] or not degrees["batch"]:
        raise Unsupported("no length or no batch")
    layout = _layout(row, "")
    redundant = re.search(r"(\d+) redundant|(\d+) expert slots", row.text("note"))
    experts = load_whole(row.model).layer
    if redundant and experts is not None:
        layout = replace(layout, slots=int(redundant[1]) if redundant[1] else int(redundant[2]) - experts.n_experts)
    try:
        replica = _replica(row, engine, layout, layout.gpus)
    except ConfigError as error:
        raise Unsupported(str(error)) from None
    drafts = int(row.acceptance > 0)
    decodes = StepBatch(decodes=float(degrees["batch"]), context=float(degrees["isl"]), queries=1 + drafts)
    batch = prompt_batch(float(degrees["batch"]), float(degrees["isl"])) if row.text("mode") == "prefill only" else decodes
    return replica, batch, re.search("two-batch overlap|TBO(?! off)", row.text("note")) is not None


def _together(row: ServingRow, engine: Engine) -> ServeSetting:
    users = float(row.degrees["concurrency"] or row.degrees["batch"])
    layout, batch = _layout(row, ""), float(row.degrees["batch"] or users)
    if users > batch * layout.dp:  # `batch` counts requests of one attention group
        groups = round(users / batch)
        if not row.degrees["attn_dp"] and groups == layout.tp and layout.ep > 1:
            layout = replace(layout, tp=1, dp=groups)
        else:
            users = batch * layout.dp
    rules = _launched(row, engine, users)
    return _setting(row, rules, users, replace(_replica(row, rules, layout, layout.gpus), ep_by_flag=rules.ep_by_flag))


def _disaggregated(row: ServingRow, engine: Engine) -> ServeSetting:
    if not row.degrees["p_workers"] or not row.degrees["d_workers"]:
        raise Unsupported("no numbers of prefill and decode workers")
    first, second = _layout(row, "p_"), _layout(row, "d_")
    workers = row.degrees["p_workers"], row.degrees["d_workers"]
    gpus = first.gpus * workers[0] + second.gpus * workers[1]
    late = ANSWERED if engine.name == "trtllm" and "InferenceX" in row.text("where") else 1
    deepep = row.text("hardware").startswith("gb") and "InferenceX" in row.text("where")  # recipes of racks: DeepEP and DeepGEMM in every layout
    blocks = engine.blocks_without_ep and not deepep
    rules = replace(_launched(row, engine, 1.0), mixed=False, gathered_steps=0, piecewise=False, answered=late, blocks_without_ep=blocks)
    made = _setting(row, rules, float(row.degrees["concurrency"] or row.degrees["batch"]), _replica(row, rules, first, gpus))
    return replace(made, decode=_replica(row, rules, second, gpus), workers=workers)


def _setting(row: ServingRow, engine: Engine, users: float, replica: Replica) -> ServeSetting:
    random = "InferenceX" in row.text("where")
    part = (1 + RATIO) / 2 if random else 1.0
    drawn = re.search(FROM_NOTHING, row.text("source") + row.text("where")) is not None
    part_accepted = MTP_OF_VLLM[1] if row.text("engine_version") == MTP_OF_VLLM[0] else ACCEPTANCE
    accepted = sum(part_accepted**n for n in range(row.drafts + 1))
    scenario = Scenario(users, row.degrees["isl"] * part, row.degrees["osl"] * part, accepted, row.drafts)
    # Where prompts go first, equal lengths come in waves; mixed steps spread them (chosen after these rows were seen).
    ratio, rounds = (0.0, 10) if drawn else (RATIO, 10) if random or engine.mixed else (1.0, 2)
    rules = replace(engine, token_us=DRAWN_TOKEN_US) if random else engine
    return ServeSetting(replica, rules, scenario, ratio, rounds, median="medians" in row.text("note"))


def _layout(row: ServingRow, part: str) -> ServeLayout:
    """A worker's layout. Rows that give the GPUs of the worker as tp and the groups as attn_dp mean tp / attn_dp. No engine cuts experts below a
    block of scales: groups of so many GPUs share experts (SGLang server_args.py: DeepEP sets the EP degree)."""
    tp, dp, ep, cut = (row.degree(f"{part}{name}") for name in ("tp", "attn_dp", "moe_ep", "moe_tp"))
    if dp > 1 and tp > 1 and tp * dp > ep * cut > 1 and tp % dp == 0:
        tp //= dp
    experts = load_whole(row.model).layer
    if experts is not None and dp > 1 and ep == 1 and experts.expert_hidden < BLOCK * tp * dp:
        ep = tp * dp
    if (tp * dp) % ep:
        raise Unsupported(f"found tp x attn_dp = {tp * dp} and moe_ep = {ep}, expected a divisor")
    return ServeLayout(tp=tp, dp=dp, ep=ep, pp=1 if part else row.degree("pp"))


def _launched(row: ServingRow, engine: Engine, users: float) -> Engine:
    """The engine as the row's benchmark starts it."""
    for rule in TABLES["launched"]:
        if rule["engine"] == engine.name and row.says(rule["where"]):
            engine = replace(engine, **rule["set"])
    if engine.name == "sglang" and "InferenceX" in row.text("where") and _blackwell(row):
        narrow = "DeepSeek" in row.text("model") and row.text("precision") == "fp8" and row.degree("tp") == 4
        engine = replace(engine, polled_steps=30.0 if users >= 16 and not narrow else 10.0)
    return engine


def _blackwell(row: ServingRow) -> bool:
    return "b200" in row.text("hardware") or "b300" in row.text("hardware")


def _replica(row: ServingRow, engine: Engine, layout: ServeLayout, gpus: int) -> Replica:
    model = load_whole(row.model)
    if faults := layout.conflicts(model):
        slots = -model.layer.n_experts % layout.ep if model.layer else 0
        if not slots or replace(layout, slots=slots).conflicts(model):
            raise Unsupported(faults[0])
        layout = replace(layout, slots=slots)
    word = row.text("hardware").lower()
    name = next((cluster for key, cluster in TABLES["serving_clusters"].items() if key in word), "")
    if not name:
        raise Unsupported(f"no packaged machine is called like {row.text('hardware')!r}")
    cluster = load_cluster(name)
    if gpus > (cluster.max_gpus or cluster.n_gpus):
        larger = [n for n in PERIODS if f"{name}-x{n}" in list_clusters()]
        if not larger:
            raise Unsupported(f"found {gpus} GPUs of {name}, expected at most {cluster.n_gpus}: no packaged machine has several domains")
        cluster = load_cluster(f"{name}-x{next((n for n in larger if n * cluster.n_gpus >= gpus), larger[-1])}")
    return Replica(model, _formats_of_row(row, model, engine), layout, machine_of(cluster, "serving"), mtp=row.drafts > 0)


def _formats_of_row(row: ServingRow, model: WholeModel, engine: Engine) -> Formats:
    """Formats by the row's precision and quantisation; without them those of the published checkpoint. Raises `Unsupported`."""
    dense = row.text("gemm_quant").lower() or row.text("precision").lower()
    experts = row.text("moe_quant").lower() or dense
    if not dense:
        name = published(model)
    elif "mxfp4" in experts:
        name = "mxfp4-fp8" if "fp8" in experts or "w4a8" in experts else "mxfp4"
    elif "int4" in experts:
        name = "int4"
    elif "fp4" in experts:
        name = ("mxfp4-fp8" if _blackwell(row) else "mxfp4") if model.name.startswith("gpt-oss") else "fp4"
    elif experts in FP8:
        name = "fp8-tensor" if experts == "fp8_static" else published(model, "fp8")
    elif experts in ("bf16", "fp16", "float16", "bfloat16"):
        name = "bf16"
    else:
        raise Unsupported(f"no format is called like {experts!r}")
    return formats_of(name, engine.cached(formats_of(name, model=model), model, "blackwell" * _blackwell(row)), model)
