"""What another machine or choice would bring: the best point within the limits, searched again with one thing changed; and what a dead GPU takes."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from dysharp.base import frozen
from dysharp.costs import machine_of
from dysharp.serving.engine import Engine
from dysharp.serving.exchange import EP_SYSTEMS, FREE, HUB, IN_SWITCH, ep_system_of
from dysharp.serving.launch import start_of, tables
from dysharp.serving.layout import ServeLayout
from dysharp.serving.search import ServePoint, search, within
from dysharp.serving.work import Replica, Scenario

LARGER = (72, 144)
"""GPUs of larger NVLink domains that are tried, where so many are in use; beside one domain of all GPUs."""
FASTER = 2.0


@frozen
class Asked:
    """A search: what is served how, and within which limits (microseconds)."""

    start: Replica
    engine: Engine
    scenario: Scenario
    gpus: int
    layouts: tuple[ServeLayout, ...] | None
    ttft: float
    tpot: float
    acceptance: float
    """Part of draft tokens that are accepted if those before were."""

    def best(self) -> ServePoint | None:
        """The best point within the limits."""
        return next(iter(within(search(self.start, self.engine, self.scenario, self.gpus, self.layouts)[0], self.ttft, self.tpot)), None)


@frozen
class ServeWhatIf:
    """`tokens_per_gpu` of the best point with one thing changed, over all GPUs; `point` None: nothing keeps the limits."""

    name: str
    point: ServePoint | None
    tokens_per_gpu: float
    how: str = ""
    """What goes on."""


def what_ifs(asked: Asked, best: ServePoint, tick: Callable[[str], None] = lambda _: None) -> list[ServeWhatIf]:
    """The changes, one by one; the last one is a dead GPU under the layout of `best`."""
    found = []
    machines = [(name, replace(asked, start=start)) for name, start in _machines(asked.start, asked.gpus)]
    for name, changed in [*machines, *_choices(asked, best)]:
        tick(name)
        point = changed.best()
        found.append(ServeWhatIf(name, point, point.tokens_per_gpu if point else 0.0))
    return [*found, _dead_gpu(asked, best)]


def _choices(asked: Asked, best: ServePoint) -> Iterator[tuple[str, Asked]]:
    """Other choices on the same machine, with which the engine starts: EP systems, the KV cache, draft tokens."""
    start, kv = asked.start, "bf16" if asked.start.formats.kv == "fp8" else "fp8"
    if min(best.replica.layout.dp, best.replica.layout.ep) > 1 and start.machine.cluster.n_switches and not start.machine.cluster.own_gpu.pcie:
        started = {name for rule in tables()[asked.engine.name]["rules"] for name in rule["when"]}
        for name in sorted({ep_system_of(replace(start, ep_system=name)) for name in EP_SYSTEMS if name in started} - {ep_system_of(start)}):
            yield f"EP system {name}", replace(asked, start=replace(start, ep_system=name))
    other = replace(start, formats=replace(start.formats, kv=kv))
    if not start_of(asked.engine, replace(other, layout=best.replica.layout), asked.scenario).refuses:
        yield f"KV cache in {kv.upper()}", replace(asked, start=other)
    if start.model.mtp and not asked.scenario.draft_tokens:
        drafting = replace(asked.scenario, draft_tokens=1, accepted=1 + asked.acceptance)
        yield f"a draft token, {asked.acceptance:.0%} accepted", replace(asked, start=replace(start, mtp=True), scenario=drafting)


def _machines(start: Replica, gpus: int) -> Iterator[tuple[str, Replica]]:
    """The replica on other machines, by name."""
    yield "communication takes no time", replace(start, ep_system=FREE)
    if start.model.layer is not None:
        yield "DySHARP switches (bound)", replace(start, ep_system=IN_SWITCH)
        yield "MoE-Hub (bound)", replace(start, ep_system=HUB)
    cluster = start.machine.cluster
    if cluster.scale_out is None:
        return
    for size in sorted({*(n for n in LARGER if start.machine.domain < n <= gpus and gpus % n == 0), gpus} - {start.machine.domain}):
        larger = replace(cluster, scale_out=replace(cluster.scale_out, domain_gpus=size))
        yield f"NVLink domains of {size} GPUs", replace(start, machine=machine_of(larger, "serving"))
    faster = replace(cluster.scale_out, nic_GBps=FASTER * cluster.scale_out.nic_GBps)
    yield "NICs twice as fast", replace(start, machine=machine_of(replace(cluster, scale_out=faster), "serving"))


def _dead_gpu(asked: Asked, best: ServePoint) -> ServeWhatIf:
    """One GPU is lost. Attention groups that share experts go on without its group, if the others hold all experts; else a replica stops, and others
    go on. Where there is no other, half of its GPUs or more, a power of two, start anew with the layout that is best there."""
    layout, others, smaller = best.replica.layout, best.replicas - 1, _without_a_group(best)
    count = 1 << (layout.gpus - 1).bit_length() - 1 if layout.gpus > 1 else 0
    point: ServePoint | None = smaller or best
    tokens = best.tokens_per_gpu * others * layout.gpus
    if smaller is not None:
        tokens, how = tokens + smaller.served.rate * smaller.scenario.osl, f"{layout.dp - 1} of {layout.dp} groups go on"
    elif others:
        how = f"{others} of {best.replicas} replicas go on"
    else:
        point, how = replace(asked, gpus=count, layouts=None).best() if count else None, f"{count} of {layout.gpus} GPUs start anew"
        tokens = point.tokens_per_gpu * count if point else 0.0
    return ServeWhatIf("a GPU dies", point, tokens / asked.gpus, how if point else "nothing that is left keeps the limits")


def _without_a_group(best: ServePoint) -> ServePoint | None:
    layout, model = best.replica.layout, best.replica.model.layer
    if layout.dp < 3 or layout.ep != layout.gpus or model is None:
        return None
    ep = layout.ep - layout.tp
    return best.on(replace(best.replica, layout=ServeLayout(layout.tp, layout.dp - 1, ep, -model.n_experts % ep)))
