"""How a layout is written: for people, and as `dysharp step` and frameworks read it."""

from dysharp.planning.cost import Costed
from dysharp.planning.space import Task
from dysharp.training.schedules import usual_schedule

SIMULATED = {
    "alltoall": "megatron-a2a", "flat": "megatron-a2a", "deepep": "deepep", "dedup": "deepep", "hybrid-ep": "hybrid-ep", "in-switch": "dysharp",
    "moe-hub": "moe-hub",
}  # fmt: skip
"""EP system of a plan -> simulated system."""


def schedule_of(one: Costed) -> str:
    """The schedule by the name of `dysharp step`."""
    name = str(one.values["schedule"])
    return usual_schedule(one.layout.vpp) if name == "1f1b" else name


def text_of(one: Costed) -> str:
    """A layout as `dysharp step` reads it, without its stages."""
    values = {name: one.values[name] for name in ("tp", "pp", "vpp", "ep", "etp", "cp")}
    degrees = ",".join(f"{name}={n}" for name, n in values.items() if n > 1 or name in ("tp", "pp"))
    shared = f",fsdp={one.layout.fsdp}" if one.layout.fsdp > 1 else ""
    return f"{degrees},dp={one.layout.dp}{shared},mbs={one.layout.micro_batch},m={one.layout.micro_batches}"


def for_step(one: Costed, task: Task, precision: str) -> str:
    """Options of `dysharp step` for a layout, in lines of a shell; offload is not among them. `precision`: as it was asked for, or ""."""
    stages = f",stages={one.layout.stages}" if one.layout.pp > 1 else ""
    again = f" --recompute {','.join(one.values['recompute'])}" if one.values["recompute"] else ""
    if (layer := task.model.layer) is not None and (precision or layer.gemm_dtype) != "bf16":
        precision = f"{precision or layer.gemm_dtype},sent=bf16,back=bf16"
    order = "interleaved-overlap" if one.values["overlap"] == "pair" and one.layout.vpp > 1 else schedule_of(one)
    asked = f" --sequence {task.sequence}" + (f" --precision {precision}" if precision else "")
    if layer is not None:
        hot, loads = task.imbalance or 1.0, f"normal-cv:{task.spread:g}" if task.spread and task.imbalance is None else "uniform"
        loads += ":group-limited" * (layer.topk_group < layer.n_group)
        asked += f" --routing {f'hot-rank:share={hot / one.layout.ep:.4g}' if hot > 1 else loads}"
        asked += f" \\\n  --systems {SIMULATED[one.values['system']]}" * (one.values["system"] in SIMULATED)
    return f"--layout '{text_of(one)}{stages}' \\\n  --schedule {order}{again}{asked}"


def short_of(one: Costed) -> str:
    """The same for people, without what follows from the number of GPUs and the batch."""
    v = one.values
    more = [f"{name}{v[name]}" for name in ("ep", "etp", "cp") if v[name] > 1]
    order = [v["schedule"]] if v["schedule"] != "1f1b" else []
    return " ".join([f"tp{v['tp']}", f"pp{v['pp']}" + (f"x{v['vpp']}" if v["vpp"] > 1 else ""), *order, *more, f"mbs{v['micro_batch']}"])


def saving_of(one: Costed) -> str:
    """How a layout saves memory: modules that are computed again, those whose inputs are offloaded, sharded weights."""
    offload = one.values["offload"]
    return " ".join([*one.values["recompute"], *(["offload", *offload] if offload else []), *(["fsdp"] if one.layout.fsdp > 1 else [])]) or "none"


def ep_of(one: Costed) -> str:
    """EP system and overlap of a layout in a table."""
    if one.values["ep"] * one.values["etp"] == 1:
        return "-"
    return str(one.values["system"]) + (" overlapped" if one.values["overlap"] == "pair" else "")


def form_of(one: Costed) -> str:
    """What `text_of` leaves out: schedule, EP system, modules that are computed again or offloaded; "" where there is nothing to say."""
    order, ep, saved = schedule_of(one), ep_of(one), [f"{name} {'+'.join(one.values[name])}" for name in ("recompute", "offload") if one.values[name]]
    return ", ".join([*([order] if one.values["schedule"] != "1f1b" else []), *([f"EP {ep}"] if ep != "-" else []), *saved])
