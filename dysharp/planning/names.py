"""How a layout is written: for people, and as `dysharp step` and frameworks read it."""

from dysharp.planning.cost import Costed
from dysharp.specs import Cluster
from dysharp.training import usual_schedule

SIMULATED = {
    "alltoall": "megatron-a2a", "flat": "megatron-a2a", "deepep": "deepep", "dedup": "deepep", "hybrid-ep": "hybrid-ep", "in-switch": "dysharp",
    "moe-hub": "moe-hub",
}  # fmt: skip
"""EP system of a plan -> simulated system."""


def simulated(system: str, cluster: Cluster) -> str | None:
    """The simulated system of a plan's EP system, or None. Only MoRI's has a real form without a switch."""
    return SIMULATED.get(system) if cluster.n_switches or not cluster.software_costs else "mori"


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
