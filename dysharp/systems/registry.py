"""The register of systems.

`_scan` imports every module of this folder, then every entry point of the group `dysharp.systems`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dysharp.base import ConfigError, ProgramError, frozen_keywords, import_all, nearest, show
from dysharp.program import Kind, Program
from dysharp.program.shares import with_kernel_sms
from dysharp.specs import Cluster, Model
from dysharp.specs.choices import overridden
from dysharp.systems.collective_system import REGISTERED, check_owner
from dysharp.systems.facts import FUSED_GEMMS, Facts, Layer
from dysharp.workload import SCHEMES, SUB_LAYER, Routing

if TYPE_CHECKING:  # who only asks for facts does not pay for the blocks
    from dysharp.systems.building.layer import Kernels
    from dysharp.systems.building.paper_layers import Begins

__all__ = ["FORMS", "FUSED_GEMMS", "System", "all_systems", "find_system", "get_system", "is_real", "kernels", "system"]
Plan = Callable[..., Any]
"""(LayerBuilder, options): adds the ops of the layer. Or (model, cluster, routing, direction, options) -> Program."""
KindOf = Callable[[Layer, Any], "type[Kernels]"]
Made = TypeVar("Made", bound="type[Kernels] | KindOf")
Whole = Callable[..., Program]
"""A plan as the System keeps it: (model, cluster, routing, direction, options), and `free` of a plan with a LayerBuilder."""
FORMS = ("auto", "paper", "real")
"""Values of the option `form`."""


@frozen_keywords
class System(Facts):
    """A system with its public name, its facts and its Programs."""

    name: str
    summary: str
    """First line of the module's docstring, or of the plan's docstring where a module holds several systems."""
    paper: Whole
    """The Program as papers assume it: no software cost."""
    real: Whole | None
    """The Program with its software costs; None: the system has no real form."""

    @property
    def has_real_form(self) -> bool:
        """Whether the system has a real form beside its paper form."""
        return self.real is not None

    def served(self, routing: Routing, options: Any) -> Routing:
        """The Routing that the system serves with `options`: what its tensors, its rows and its bounds are about."""
        return routing if self.moves.serves is None else self.moves.serves(routing, options)

    def plan(self, model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any) -> Program:
        """The Program of one pass ("fwd" or "bwd") with `options`, an instance of `self.options`, on the served Routing.

        The option `form` chooses between `paper` and `real`; "auto" is `real` on hw clusters. Raises ConfigError for
        wrong options, ProgramError where the function returns something else.
        """
        form = self.form_on(cluster, options)
        chosen = self.real if self.real is not None and form == "real" else self.paper
        program: object = chosen(model, cluster, self.served(routing, options), direction, options)
        if not isinstance(program, Program):
            raise ProgramError(f'system "{self.name}": found {type(program).__name__} from {chosen.__name__}, expected a Program (`layer.build()`)')
        if getattr(options, "compute", True) and (routing.expert >= 0).any() and not any(t.kind is Kind.COMPUTE for t in program.templates):
            raise ProgramError(f'system "{self.name}": found no GEMM from {chosen.__name__}, expected those of the experts (see `fused`)')
        if form == "paper":
            return program
        program = dataclasses.replace(program, declared=dataclasses.replace(program.declared, kernel_sms=self.kernel_sms(model, cluster, options)))
        return with_kernel_sms(program) if direction == "bwd" else program

    def with_free_transfers(self) -> System | None:
        """The system whose GEMMs run one after the other between transfers that cost nothing; None: its plan makes its own builder (`system`)."""
        if any(plan and len(inspect.signature(plan).parameters) != 2 for plan in (self.paper, self.real)):  # `wraps` keeps the plan's signature
            return None
        return dataclasses.replace(self, paper=partial(self.paper, free=True), real=self.real and partial(self.real, free=True))

    def kernel_sms(self, model: Model, cluster: Cluster, options: Any) -> int:
        """SMs of each communication kernel of the real form; 0 = not known."""
        own = self.costs.sms
        return int(getattr(options, "n_sm", 0)) or (own(model, cluster) if own else 0)

    def form_on(self, cluster: Cluster, options: Any) -> str:
        """The form of a run with `options` on `cluster`, "paper" or "real". Raises ConfigError where that form does not run on the cluster's
        fabric."""
        form = "real" if self.real is not None and is_real(options.form, cluster) else "paper"
        if not cluster.n_switches and form not in self.reach.no_switch:
            others = ", ".join(name for name, one in all_systems().items() if form in one.reach.no_switch)
            found = f"found no switch (every pair of GPUs has a link), expected a switch ({self.reach.switch or 'its rows go by NVLink'})"
            raise ConfigError(f'{self.name} in {form} form on cluster "{cluster.name}": {found}; systems without a switch in {form} form: {others}')
        if form == "real" and 0 < self.reach.most < cluster.domains:
            raise ConfigError(f"{self.name}: found {cluster.domains} domains, expected at most {self.reach.most} (the kernels' limit)")
        if not self.reach.runs_on(cluster, form):
            others = ", ".join(name for name, one in all_systems().items() if one.reach.runs_on(cluster, form))
            found = f"found {cluster.domains} NVLink domains of {cluster.domain_gpus} GPUs"
            expected = f"expected one (systems for several in {form} form: {others})"
            why = f": {self.reach.stays}" if self.reach.stays else ""
            raise ConfigError(f'{self.name} in {form} form on cluster "{cluster.name}": {found}, {expected}{why}')
        return form


def is_real(form: str, cluster: Cluster) -> bool:
    """Whether the option `form` asks for the real form on this cluster.

    Raises ConfigError for an unknown or impossible form.
    """
    if form not in FORMS:
        raise ConfigError(f"form: found {form!r}, expected one of {', '.join(FORMS)}")
    if form == "real" and not cluster.gpu:
        raise ConfigError(f'form: found "real" on cluster "{cluster.name}", expected an hw-* cluster (it names a GPU with fitted constants)')
    return form == "real" or (form == "auto" and cluster.software_costs)


_REGISTRY: dict[str, System] = {}


def system(name: str, facts: Facts, *, real: Plan | None = None, begins: Begins | None = None, kind: KindOf | None = None) -> Callable[[Plan], Plan]:
    """Register a plan function as the paper form of the system `name`. `real`: the plan function of its real form.

    A plan adds ops to the LayerBuilder that it gets: `begun`, with the keywords that `begins` returns. A plan with five arguments makes its own.
    `kind`: a function (layer, options) -> the class of the builder in real form.

    Raises ConfigError where `real` comes without the option `form` or `costs.gemms` without the option `gemms` (or the other way round),
    for an option without a default, an unknown scheme, negative `permutes`, a colour that is not "#RRGGBB", and a name that another module has.
    """
    known = {f.name for f in dataclasses.fields(facts.options)}
    for fact, declared, option in (("real", real is not None, "form"), ("costs.gemms", bool(facts.costs.gemms), "gemms")):
        if declared != (option in known):
            raise ConfigError(f'system "{name}": found {fact if declared else f"option {option!r}"} alone, expected {fact} and option {option!r}')
    bare = [f.name for f in dataclasses.fields(facts.options) if f.default is dataclasses.MISSING]
    if bare:
        raise ConfigError(f'system "{name}": found option {bare[0]!r} without a default, expected a default')
    for fact, scheme in (("sent", facts.moves.sent), ("back", facts.moves.back)):
        if isinstance(scheme, str) and scheme not in SCHEMES:
            raise ConfigError(f'system "{name}": found moves.{fact} {scheme!r}, expected a function or one of {", ".join(SCHEMES)}')
    if facts.costs.permutes < 0:
        raise ConfigError(f'system "{name}": found costs.permutes {facts.costs.permutes}, expected 0 or more')
    if not re.fullmatch("#[0-9A-Fa-f]{6}", facts.shown.colour):
        raise ConfigError(f'system "{name}": found shown.colour {facts.shown.colour!r}, expected "#RRGGBB"')

    def register(plan: Plan) -> Plan:
        check_owner(f'system "{name}"', real or plan, lambda: (one := _REGISTRY.get(name)) and (one.real or one.paper))
        declared = {f.name: getattr(facts, f.name) for f in dataclasses.fields(facts)} | {
            "today": real is not None if facts.today is None else facts.today
        }
        paper, own = _whole(name, facts, plan, begins), real and _whole(name, facts, real, begins, kind)
        usual = plan.__module__ == "dysharp.systems.building.paper_layers"
        _REGISTRY[name] = System(**declared, name=name, summary=_summary(name, real if real and usual else plan), paper=paper, real=own)
        return plan

    return register


def kernels(
    name: str, facts: Facts, *, between: type[Kernels] | None = None, paper: Plan | None = None, begins: Begins | None = None
) -> Callable[[Made], Made]:
    """Register a class of `Kernels`, or a function (Layer, options) -> such a class, as the real form of the system `name`.

    `between`: the class over several NVLink domains. `paper`: the plan function of its paper form (`system`); None: the one of `USUAL`.
    """
    from dysharp.systems.building.experts import one_after_another
    from dysharp.systems.building.paper_layers import USUAL

    def register(made: Made) -> Made:
        def kind(layer: Layer, options: Any) -> type[Kernels]:
            return (between if between and layer.cluster.domains > 1 else made) if isinstance(made, type) else made(layer, options)

        def real(layer: Kernels, options: Any) -> None:
            layer.prepare()
            layer.combine(one_after_another(layer, layer.dispatch(), facts.costs))

        real.__module__, real.__doc__ = made.__module__, made.__doc__
        system(name, facts, real=real, begins=begins, kind=kind)(paper or USUAL[str(facts.moves.sent)])
        return made

    return register


def _whole(name: str, facts: Facts, plan: Plan, begins: Begins | None, kind: KindOf | None = None) -> Whole:
    """The plan with five arguments."""
    from dysharp.systems.building.experts import one_after_another
    from dysharp.systems.building.moved import with_moved_weights
    from dysharp.systems.building.paper_layers import begun

    if len(inspect.signature(plan).parameters) != 2:
        return plan

    @wraps(plan)
    def whole(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any, free: bool = False) -> Program:
        layer = Layer(model, cluster, routing, direction)
        more = (begins(layer, options) if begins else {}) | ({"kind": kind(layer, options)} if kind else {})
        builder = begun(name, facts, layer, options, **more)
        if free:
            builder.dispatch_free()
            builder.combine_free(one_after_another(builder, None, facts.costs if kind else None))
            return builder.build("none")
        plan(builder, options)
        with_moved_weights(builder)
        return builder.build(facts.moves, options)

    return whole


def _summary(name: str, plan: Plan) -> str:
    """The first line of the module, or of the plan where the module holds systems of other names."""
    of_plan = plan.__doc__ and plan.__module__.rpartition(".")[2].replace("_", "-") != name
    return ((plan if of_plan else importlib.import_module(plan.__module__)).__doc__ or "").strip().partition("\n")[0]


@cache
def _scan() -> None:
    import_all("dysharp.systems")
    for entry in entry_points(group="dysharp.systems"):
        try:
            entry.load()
        except Exception as error:  # an entry point may raise anything; the error names the entry point
            raise ConfigError(f"entry point {entry.name} = {entry.value} (dysharp.systems): found {type(error).__name__}: {error}") from error


def import_systems(source: str) -> None:
    """Import a file NAME.py, or a module on Python's path, that registers systems. Raises ConfigError for what cannot be imported."""
    name = f"imported.{Path(source).stem}"
    try:
        if not source.endswith(".py"):
            importlib.import_module(source)
        elif getattr(sys.modules.get(name), "__file__", None) != source:
            code = compile(Path(source).read_text("utf-8"), source, "exec")
            module = sys.modules[name] = ModuleType(name)
            module.__file__ = source
            exec(code, vars(module))
    except Exception as error:  # a file of the user may raise anything
        sys.modules.pop(name, None)
        why = "no module" if isinstance(error, ModuleNotFoundError) else type(error).__name__
        found = str(error) if isinstance(error, ConfigError) else f"found {why}: {error}, expected a file or module that registers a system"
        raise ConfigError(f"import {show(source)}: {found}") from error


def all_systems() -> dict[str, System]:
    """Every registered system by name."""
    _scan()
    return dict(sorted(_REGISTRY.items()))


def find_system(name: str) -> System | None:
    """The system called `name`: from the module of its name if there is one, else from all modules. None: it is not known."""
    module = f"dysharp.systems.{name.replace('-', '_')}"
    if name not in _REGISTRY and name.replace("-", "").isalnum() and not overridden() and find_spec(module):  # defaults are the packaged choices
        importlib.import_module(module)
    return _REGISTRY.get(name) or all_systems().get(name)


def get_system(name: str) -> System:
    """The system called `name`. Raises ConfigError with the nearest valid name."""
    if (one := find_system(name)) is not None:
        return one
    for folder in ("collectives", "tp"):
        import_all(f"dysharp.systems.{folder}")
    other = REGISTERED.get(name)
    if other is not None:
        kind, example = ("sub-layer", "sub-layer:llama-7b:L1") if SUB_LAYER in other.operations else ("collective", "all-reduce:64MiB")
        raise ConfigError(f"system {name!r}: found a system of {kind}s, expected a {kind} for it (--workload {example})")
    close = nearest(name, {**all_systems(), **REGISTERED})
    raise ConfigError(f"system {name!r}: unknown{close if 'did you mean' in close else nearest(name, all_systems())}")
