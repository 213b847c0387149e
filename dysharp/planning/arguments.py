"""A layout as arguments of training frameworks, to paste: Megatron-LM, Megatron-Bridge, MindSpeed.

Names of options are those of Megatron-LM d98e8a6, Megatron-Bridge 067f987 and MindSpeed's feature notes. What Megatron asserts beside them is data
(`asserted.toml`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from dysharp.base import ByName, Rows, read_toml
from dysharp.planning.cost import Costed
from dysharp.planning.space import Task
from dysharp.training import FULL

FLEX = {"deepep": "deepep", "hybrid-ep": "hybridep", "dedup": "deepep"}
"""EP system -> backend of the flex dispatcher; all others are alltoall."""
SHARED = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
RECOMPUTE_ALL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
ASSERTED: dict[str, Rows] = read_toml(Path(__file__).with_name("asserted.toml"))
"""Rules of Megatron: kind -> what it asks for, and when."""
RECOMPUTED = {"layernorm": "--recompute-norm", "moe_act": "--recompute-activation-function"}
"""Module -> MindSpeed's option."""


def _degrees(task: Task, one: Costed) -> list[tuple[str, int]]:
    """Options that all frameworks share, as (name with underscores, value)."""
    at = one.layout
    common = [
        ("tensor_model_parallel_size", at.tp), ("pipeline_model_parallel_size", at.pp), ("context_parallel_size", at.cp),
        ("micro_batch_size", at.micro_batch), ("global_batch_size", at.global_batch), ("seq_length", task.sequence),
    ]  # fmt: skip
    if task.model.layer:
        common[3:3] = [("expert_model_parallel_size", at.ep), ("expert_tensor_parallel_size", at.etp)]
    return common


def _flag(name: str, value: int) -> str:
    return f"--{name.replace('_', '-')} {value}"


FP8_RECIPES = {
    "fp8-block": ("--fp8-format e4m3 --fp8-recipe blockwise", "bf16_with_fp8_subchannel_scaling_mixed"),
    "fp8": ("--fp8-format hybrid --fp8-recipe tensorwise", "bf16_with_fp8_current_scaling_mixed"),
    "mxfp8": ("--fp8-format e4m3 --fp8-recipe mxfp8", "bf16_with_mxfp8_mixed"),
    "nvfp4": ("--fp4-format e2m1 --fp4-recipe nvfp4", "bf16_with_nvfp4_mixed"),
}
"""Format of weights -> (options of Megatron-LM, Megatron-Bridge's precision)."""
STATES = {
    "moments": ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
                "cfg.optimizer.use_precision_aware_optimizer = True\ncfg.optimizer.exp_avg_dtype = cfg.optimizer.exp_avg_sq_dtype = torch.bfloat16"),
    "gradients": ("--grad-reduce-in-bf16", "cfg.ddp.grad_reduce_in_fp32 = False"),
    "primary": ("--fp8-param-gather", "cfg.mixed_precision.fp8_param_gather = True"),
}  # fmt: skip
"""What a recipe of state adds, by the end of its name; the same pairs."""


def _types(task: Task) -> Iterator[tuple[str, str]]:
    """Options of a precision that was said, as pairs of Megatron-LM and Megatron-Bridge."""
    formats = task.training_recipe.formats
    if formats is None:
        return
    option, name = FP8_RECIPES.get(formats.experts if task.model.layer else formats.dense, ("", "bf16_mixed"))
    yield "--bf16", ""
    yield option, f'cfg.mixed_precision = get_mixed_precision_config("{name}")'
    for end, pair in STATES.items():
        if formats.state.endswith(end):
            yield pair
    if formats.state == "bf16-gradients":  # its moments are BF16, too
        yield STATES["moments"]


def _asserted(kind: str, one: Costed) -> Iterator[ByName]:
    """The rules of a kind that a layout meets."""
    at, pair = one.layout, one.values["overlap"] == "pair"
    fsdp, cut = at.fsdp > 1, at.tp > 1 or at.cp > 1
    facts = {"fsdp": fsdp, "offload": bool(one.values["offload"]), "tp or cp": cut, "not fsdp": not fsdp, "not pair": not pair}
    facts["fsdp or pair"] = fsdp or pair
    return (rule for rule in ASSERTED[kind] if all(facts[name] for name in rule["when"]))


def environment_of(framework: str, one: Costed) -> dict[str, str]:
    """{NAME=value: why}: variables that a framework asserts for a layout."""
    return {rule["says"]: rule["why"] for rule in _asserted("environment", one)} if framework.startswith("megatron") else {}


def _megatron(task: Task, one: Costed) -> Iterator[tuple[str, str]]:
    """(options of Megatron-LM, lines of Megatron-Bridge) that say the same; "": nothing to say."""
    values, at, own = one.values, one.layout, {"micro_batch_size": "train", "global_batch_size": "train"}
    for name, n in _degrees(task, one):
        yield _flag(name, n), f"cfg.{own.get(name, 'model')}.{name} = {n}"
    yield from _types(task)
    yield "--sequence-parallel" * (at.tp > 1), f"cfg.model.sequence_parallel = {at.tp > 1}"
    if at.pp > 1:
        yield "", f"cfg.model.virtual_pipeline_model_parallel_size = {at.vpp if at.vpp > 1 else None}"
        yield f'--pipeline-model-parallel-layout "{at.stages}"', f'cfg.model.pipeline_model_parallel_layout = "{at.stages}"'
    if task.model.mtp:
        yield f"--mtp-num-layers {task.model.mtp}", ""
    if FULL in values["recompute"]:
        fields = 'cfg.model.recompute_granularity = "full"\ncfg.model.recompute_method = "uniform"\ncfg.model.recompute_num_layers = 1'
        yield RECOMPUTE_ALL, fields
    elif again := values["recompute"]:
        fields = f'cfg.model.recompute_granularity = "selective"\ncfg.model.recompute_modules = {list(again)}'
        yield "--recompute-granularity selective --recompute-modules " + " ".join(again), fields
    if at.fsdp > 1:
        fields = 'cfg.ddp.use_megatron_fsdp = True\ncfg.ddp.data_parallel_sharding_strategy = "optim_grads_params"'
        yield "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", fields
    yield from ((rule["says"], rule["bridge"]) for rule in _asserted("option", one))
    if offload := values["offload"]:
        fields = f"cfg.model.fine_grained_activation_offloading = True\ncfg.model.offload_modules = {list(offload)}"
        yield "--fine-grained-activation-offloading --offload-modules " + " ".join(offload), fields
    pair = values["overlap"] == "pair"
    if task.model.layer:
        backend = FLEX.get(values["system"])
        fields = f'cfg.model.moe_token_dispatcher_type = "{"flex" if backend else "alltoall"}"'
        fields += f'\ncfg.model.moe_flex_dispatcher_backend = "{backend}"' if backend else ""
        yield f"--moe-token-dispatcher-type {f'flex --moe-flex-dispatcher-backend {backend}' if backend else 'alltoall'}", fields
        yield "", f"cfg.comm_overlap.overlap_moe_expert_parallel_comm = {pair}"
    if pair:
        fields = "cfg.comm_overlap.delay_wgrad_compute = True\ncfg.model.moe_shared_expert_overlap = False"
        yield "--overlap-moe-expert-parallel-comm --delay-wgrad-compute", fields


def _megatron_lm(task: Task, one: Costed) -> list[str]:
    """Options of `pretrain_gpt.py`."""
    return [*(line for line, _ in _megatron(task, one) if line), SHARED]


def _bridge(task: Task, one: Costed) -> list[str]:
    """Lines that set the fields of a recipe's `cfg`."""
    return [line for _, lines in _megatron(task, one) for line in lines.split("\n") if line]


def _mindspeed(task: Task, one: Costed) -> list[str]:
    """Options of MindSpeed. With tensor parallelism, whole experts lie on tensor ranks, and its EP degree counts groups of them."""
    values, at = one.values, one.layout
    extends = task.model.layer is not None and at.tp > 1 and at.etp == 1 and at.ep % at.tp == 0
    degrees = (_flag(name, at.ep // at.tp if extends and name == "expert_model_parallel_size" else value) for name, value in _degrees(task, one))
    lines = (
        *degrees, "--sequence-parallel --use-ascend-mc2" * (at.tp > 1), f'--pipeline-model-parallel-layout "{at.stages}"' * (at.pp > 1),
        "--moe-tp-extend-ep" * extends, "--moe-token-dispatcher-type alltoall" * (task.model.layer is not None),
        "--moe-hierarchical-alltoallv" * (values["system"] == "hierarchical"), "--moe-fb-overlap" * (values["overlap"] == "pair"),
        RECOMPUTE_ALL * (FULL in values["recompute"]), "--swap-attention" * bool(values["offload"]),
        "--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion" * (at.fsdp > 1),
        "--schedules-method dualpipev" * (values["schedule"] == "dualpipev"),
        *(RECOMPUTED[name] for name in values["recompute"] if name in RECOMPUTED), SHARED,
    )  # fmt: skip
    return [line for line in lines if line]


FRAMEWORKS: dict[str, Callable[[Task, Costed], list[str]]] = {"megatron-lm": _megatron_lm, "megatron-bridge": _bridge, "mindspeed": _mindspeed}
"""Framework -> lines to paste."""
_LEFT_OUT = (
    "hierarchical and what-if EP systems become alltoall; split and V-shaped schedules are not among its options; "
    "linears that stay in BF16 under FP8 go into --te-precision-config-file"
)
NOT_SAID: dict[str, str] = {
    "megatron-lm": _LEFT_OUT,
    "megatron-bridge": _LEFT_OUT,
    "mindspeed": "mla_up_proj is not among its options, of schedules dualpipev alone; flat and deduplicated exchanges are alltoall",
}
"""What a framework's options leave out."""


def lines_of(framework: str, task: Task, one: Costed) -> list[str]:
    """A layout for `framework` (a key of `FRAMEWORKS`)."""
    return FRAMEWORKS[framework](task, one)
