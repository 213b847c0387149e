"""What a system of collectives or sub-layers is, and the table of all that are declared. `systems/collectives` finds them."""

from collections.abc import Callable
from typing import Any

from dysharp.base import ConfigError, Texts, frozen, frozen_keywords, import_all
from dysharp.program import Program
from dysharp.specs import Cluster
from dysharp.workload import SUB_LAYER, Work

Plan = Callable[[Any, Cluster, Any], Program]
"""(a Collective or a SubLayer, cluster, options) -> Program."""
Says = Callable[[Any, Cluster, Any], Texts]


@frozen
class NoOptions:
    """A system without options."""


@frozen_keywords
class CollectiveSystem:
    """A system that runs collectives or sub-layers. The decorator `collective` registers it."""

    name: str
    summary: str
    """First line of the plan's docstring."""
    source: str
    operations: Texts
    """Operations that the system runs: operations of a Collective, or `SUB_LAYER`."""
    build: Plan
    options: type = NoOptions
    """A frozen dataclass; every field has a default."""
    switch: str = ""
    """What it does in the switch; "" = nothing."""
    domains: bool = False
    """Whether it runs over several NVLink domains."""
    uneven: bool = True
    """Whether shares may differ."""
    says: Says = lambda work, cluster, options: ()
    """Sentences about one run for its Row: what the library chose by itself."""

    def why_not(self, work: Work, cluster: Cluster) -> str:
        """Why the system does not run `work` on `cluster`; "": it runs."""
        reasons = [
            (work.operation not in self.operations, f"found {work.operation}, expected {' or '.join(self.operations)}"),
            (work.gpus != cluster.n_gpus, f'found shares of {work.gpus} GPUs, expected those of {cluster.n_gpus} GPUs of cluster "{cluster.name}"'),
            (work.operation == SUB_LAYER and work.gpus == 1, "found a sub-layer on one GPU, expected 2 GPUs or more (they share its matrices)"),
            (not self.uneven and not work.is_even, f"found {work.description}, expected equal shares"),
            (not cluster.n_switches, f'found no switch in cluster "{cluster.name}", expected one ({self.switch or "its stores go by NVLink"})'),
            (
                bool(self.switch and cluster.gpu) and not cluster.own_gpu.multicasts,
                f'found no sums in the switch of cluster "{cluster.name}", expected NVLink of Hopper or later ({self.switch})',
            ),
            (cluster.domains > 1 and not self.domains, f"found {cluster.domains} NVLink domains, expected one"),
        ]
        return next((text for wrong, text in reasons if wrong), "")

    def plan(self, work: Work, cluster: Cluster, options: Any) -> Program:
        """The Program of `work` with `options`, an instance of `self.options`. Raises ConfigError where the system does not run it."""
        if reason := self.why_not(work, cluster):
            raise ConfigError(f"{self.name}: {reason}")
        return self.build(work, cluster, options)


def check_range(option: str, value: int, most: int) -> None:
    """Raise ConfigError unless 0 <= `value` <= `most`."""
    if not 0 <= value <= most:
        raise ConfigError(f"option {option}: found {value}, expected 0 to {most}")


SCRIPT = {"__main__", "__mp_main__"}
"""Names of one script, here and in the processes that it starts."""


def check_owner(what: str, plan: Any, known: Callable[[], Any]) -> None:
    """Raise ConfigError where another module than that of `plan` has registered `known()`, such as a packaged one that nobody has imported yet."""
    for folder in () if plan.__module__.startswith("dysharp.") else ("", ".collectives", ".tp"):
        import_all(f"dysharp.systems{folder}")
    other = (known() or plan).__module__
    if other != plan.__module__ and not {other, plan.__module__} <= SCRIPT:
        raise ConfigError(f"{what}: found it in {other} and in {plan.__module__}, expected a name of its own")


REGISTERED: dict[str, CollectiveSystem] = {}


def collective(name: str, **facts: Any) -> Callable[[Plan], Plan]:
    """Register a plan function. `facts`: fields of `CollectiveSystem` besides `name`, `summary` and `build`."""

    def register(plan: Plan) -> Plan:
        check_owner(f'system "{name}"', plan, lambda: (one := REGISTERED.get(name)) and one.build)
        summary = (plan.__doc__ or "").strip().splitlines()
        REGISTERED[name] = CollectiveSystem(name=name, summary=summary[0] if summary else "", build=plan, **facts)
        return plan

    return register
