"""A layout as arguments of training frameworks, to paste: Megatron-LM, Megatron-Bridge, MindSpeed.

Names of options are those of Megatron-LM d98e8a6, Megatron-Bridge 067f987 and MindSpeed's feature notes.
"""

from collections.abc import Callable, Iterable

from dysharp.planning.cost import Costed
from dysharp.planning.space import Task
from dysharp.steps.accounting.activations import FULL

FLEX = {"deepep": "deepep", "hybrid-ep": "hybridep", "dedup": "deepep"}
"""EP system -> backend of the flex dispatcher; all others are alltoall."""
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


def _flags(pairs: Iterable[tuple[str, int]]) -> list[str]:
    return [f"--{name.replace('_', '-')} {value}" for name, value in pairs]


def megatron_lm(task: Task, one: Costed) -> list[str]:
    """Options of `pretrain_gpt.py`."""
    values, lines = one.values, _flags(_degrees(task, one))
    if one.layout.tp > 1:
        lines.append("--sequence-parallel")
    if one.layout.pp > 1:
        lines.append(f'--pipeline-model-parallel-layout "{one.layout.stages}"')
    if task.model.mtp:
        lines.append(f"--mtp-num-layers {task.model.mtp}")
    if FULL in values["recompute"]:
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    elif values["recompute"]:
        lines.append("--recompute-granularity selective --recompute-modules " + " ".join(values["recompute"]))
    if one.layout.fsdp > 1:
        lines.append("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params")
    if values["swap"]:
        lines.append("--fine-grained-activation-offloading --offload-modules " + " ".join(values["swap"]))
    if task.model.layer:
        backend = FLEX.get(values["system"])
        kind = f"flex --moe-flex-dispatcher-backend {backend}" if backend else "alltoall"
        lines.append(f"--moe-token-dispatcher-type {kind}")
    if values["overlap"] == "pair":
        lines.append("--overlap-moe-expert-parallel-comm --delay-wgrad-compute")
    return [*lines, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"]


def megatron_bridge(task: Task, one: Costed) -> list[str]:
    """Lines that set the fields of a recipe's `cfg`."""
    values, at = one.values, one.layout
    own = {"micro_batch_size": "train", "global_batch_size": "train"}
    lines = [f"cfg.{own.get(name, 'model')}.{name} = {value}" for name, value in _degrees(task, one)]
    lines.append(f"cfg.model.sequence_parallel = {at.tp > 1}")
    if at.pp > 1:
        lines.append(f"cfg.model.virtual_pipeline_model_parallel_size = {at.vpp if at.vpp > 1 else None}")
        lines.append(f'cfg.model.pipeline_model_parallel_layout = "{at.stages}"')
    if FULL in values["recompute"]:
        lines += ['cfg.model.recompute_granularity = "full"', 'cfg.model.recompute_method = "uniform"', "cfg.model.recompute_num_layers = 1"]
    elif values["recompute"]:
        lines += ['cfg.model.recompute_granularity = "selective"', f"cfg.model.recompute_modules = {list(values['recompute'])}"]
    if at.fsdp > 1:
        lines += ["cfg.ddp.use_megatron_fsdp = True", 'cfg.ddp.data_parallel_sharding_strategy = "optim_grads_params"']
    if values["swap"]:
        lines += ["cfg.model.fine_grained_activation_offloading = True", f"cfg.model.offload_modules = {list(values['swap'])}"]
    if task.model.layer:
        backend = FLEX.get(values["system"])
        lines.append(f'cfg.model.moe_token_dispatcher_type = "{"flex" if backend else "alltoall"}"')
        if backend:
            lines.append(f'cfg.model.moe_flex_dispatcher_backend = "{backend}"')
        pair = values["overlap"] == "pair"
        lines.append(f"cfg.comm_overlap.overlap_moe_expert_parallel_comm = {pair}")
        if pair:
            lines += ["cfg.comm_overlap.delay_wgrad_compute = True", "cfg.model.moe_shared_expert_overlap = False"]
    return lines


def mindspeed(task: Task, one: Costed) -> list[str]:
    """Options of MindSpeed. With tensor parallelism, whole experts lie on tensor ranks, and its EP degree counts groups of them."""
    values, at = one.values, one.layout
    extends = task.model.layer is not None and at.tp > 1 and at.etp == 1 and at.ep % at.tp == 0
    pairs = [(name, at.ep // at.tp if extends and name == "expert_model_parallel_size" else value) for name, value in _degrees(task, one)]
    lines = _flags(pairs)
    if at.tp > 1:
        lines.append("--sequence-parallel --use-ascend-mc2")
    if at.pp > 1:
        lines.append(f'--pipeline-model-parallel-layout "{at.stages}"')
    if extends:
        lines.append("--moe-tp-extend-ep")
    if task.model.layer:
        lines.append("--moe-token-dispatcher-type alltoall")
    if values["system"] == "hierarchical":
        lines.append("--moe-hierarchical-alltoallv")
    if values["overlap"] == "pair":
        lines.append("--moe-fb-overlap")
    if FULL in values["recompute"]:
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if values["swap"]:
        lines.append("--swap-attention")
    if values["schedule"] == "dualpipev":
        lines.append("--schedules-method dualpipev")
    lines += [RECOMPUTED[name] for name in values["recompute"] if name in RECOMPUTED]
    return [*lines, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"]


FRAMEWORKS: dict[str, Callable[[Task, Costed], list[str]]] = {"megatron-lm": megatron_lm, "megatron-bridge": megatron_bridge, "mindspeed": mindspeed}
"""Framework -> lines to paste."""
NOT_SAID: dict[str, str] = {
    "megatron-lm": "hierarchical and what-if EP systems become alltoall; split and V-shaped schedules are not among its options",
    "megatron-bridge": "hierarchical and what-if EP systems become alltoall; split and V-shaped schedules are not among its options",
    "mindspeed": "mla_up_proj is not among its options, of schedules dualpipev alone; flat and deduplicated exchanges are alltoall",
}
"""What a framework's options leave out."""


def lines_of(framework: str, task: Task, one: Costed) -> list[str]:
    """A layout for `framework` (a key of `FRAMEWORKS`)."""
    return FRAMEWORKS[framework](task, one)
