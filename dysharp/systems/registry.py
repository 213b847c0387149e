"""The register of systems.

`_scan` imports every module of this folder, then every entry point of the group `dysharp.systems`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from dysharp.errors import ConfigError, ProgramError, nearest
from dysharp.program import Program
from dysharp.specs import Cluster, Model
from dysharp.specs.gpu import load_gpu
from dysharp.workload import SCHEMES, Routing, Scheme

Plan = Callable[[Model, Cluster, Routing, str, Any], Program]
Serves = Callable[[Routing, Any], Routing]
FORMS = ("auto", "paper", "real")
"""Values of the option `form`."""
FUSED_GEMMS = "fused"
"""Value of the option `gemms`: the GEMMs are those of a fused kernel."""
PHASES = ("decode", "prefill", "train")
"""Phases of a model's life for which software has kernels. "train" needs backward kernels."""
ONLY_BY_NAME = ("fastermoe", "megatron-ag", "nvls", "tutel")
"""Over several NVLink domains these run where somebody names them.

megatron-ag and nvls send every token to every GPU, so their ops or copies would outnumber those of all others. FasterMoE
computes tiles of an expert by step, and Tutel pads tiles, so leading tokens give no estimate.
"""
OTHER_COLOUR = "#44AA99"
"""Plot colour of every system that declares none."""


@dataclass(frozen=True, slots=True)
class Ships:
    """The GPUs and models on which the released software of a system runs.

    A field with its default restricts nothing, because the source does not mention it.
    """

    source: str
    archs: tuple[str, ...]
    """Architectures of GPUs (`Gpu.arch`)."""
    formats: Mapping[str, Mapping[str, str]]
    """GEMM type of a model -> the options with which the system usually runs such models.

    For other types the software has no kernels.
    """
    hidden: tuple[int, ...] = ()
    """Hidden sizes for which the release has kernels; () = any."""
    step: int = 1
    """The hidden size must be a multiple of this."""
    expert_step: int = 1
    """The hidden size of an expert must be a multiple of this."""
    gated: bool = False
    """True: the software runs gated experts only."""
    phases: tuple[str, ...] = PHASES
    """Phases for which the release has kernels (`PHASES`)."""
    phases_source: str = ""
    """Source of `phases`; "" where the software has kernels for all."""

    def lacks(self, phase: str) -> str:
        """Why the software does not run a phase; "": the software runs."""
        if phase in self.phases:
            return ""
        return f"no {'backward kernels' if phase == 'train' else f'kernels for {phase}'} ({self.phases_source})"

    def why_not(self, model: Model, cluster: Cluster) -> str:
        """Why the software does not run this model on this cluster; "": the software runs."""
        arch = load_gpu(cluster.gpu).arch
        reasons = [
            (arch not in self.archs, f"on {arch}, expected {' or '.join(self.archs)}"),
            (model.gemm_dtype not in self.formats, f"for {model.gemm_dtype} models, expected {' or '.join(self.formats)}"),
            (bool(self.hidden) and model.hidden not in self.hidden, f"for hidden {model.hidden}, expected {', '.join(map(str, self.hidden))}"),
            (model.hidden % self.step > 0, f"for hidden {model.hidden}, expected a multiple of {self.step}"),
            (model.expert_hidden % self.expert_step > 0, f"for experts of {model.expert_hidden}, expected a multiple of {self.expert_step}"),
            (self.gated and not model.gated, "for ungated experts, expected three matrices"),
        ]
        return next((f"no kernel {text} ({self.source})" for wrong, text in reasons if wrong), "")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of software or hardware that `advise` tries. The declaring system has the change built in."""

    name: str
    assumes: str
    rank: int
    """Place in the list of changes: the smallest change has the smallest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system with its public name and all facts about the system that other folders read."""

    name: str
    source: str
    summary: str
    """First line of the module's docstring, or of the plan's docstring where a module holds several systems."""
    options: type
    traffic: Scheme
    """Name of a closed form of `workload.traffic`, or a function (routing, options) -> token rows up and down a GPU."""
    paper: Plan
    """The Program as papers assume it: no software cost."""
    real: Plan | None
    """The Program with its software costs; None: the system has no real form."""
    permutes: int
    """Permutations per pass that the Program does not contain. A permutation sorts rows by expert and puts them back.

    On hw clusters each permutation adds to the layer time. 0: the system writes rows in place, or its Program contains
    the permutation.
    """
    fused: bool
    """True: one kernel is the whole layer, so no activation, cast or launch is added to the Program's time."""
    drops: str
    """Parts of the software or hardware that the paper form leaves out."""
    today: bool
    """True: the software runs on machines that one can buy."""
    bound: bool
    """True: a lower bound, which nobody can build."""
    gemm_variants: tuple[str, ...]
    """Values of the option `gemms` among which "auto" chooses on an hw cluster. (): the system has no such option."""
    row_formats: tuple[str, ...]
    """Values that the option `dispatch` accepts."""
    colour: str
    """Plot colour, "#RRGGBB"."""
    change: Change | None
    ships: Ships | None
    """GPUs and models on which the released software runs. None: not known."""
    serves: Serves | None = None
    """A function (routing, options) -> the Routing that the system serves: without the choices that a capacity drops,
    with expert slots in parts. Applied twice it changes nothing more. None: the Routing as it is."""
    several_domains: tuple[str, ...] = ()
    """Forms ("paper", "real") in which the system runs on several NVLink domains. Others are refused there."""
    most_domains: int = 0
    """NVLink domains that the kernels of its real form can serve. 0: any number."""
    without_switch: tuple[str, ...] = ()
    """Forms in which the system runs on a fabric without a switch (`Cluster.n_switches` 0). Others are refused there."""
    in_switch: str = ""
    """What the system does in the switch; "" = nothing. Printed where a fabric has none."""
    one_domain: str = ""
    """Why the system stays inside one NVLink domain, in its refusal; "" = nothing more is known."""
    between_domains: str = ""
    """What the system assumes between domains and no measured machine has; "" = nothing. A warning of every Row over domains."""
    returns: Scheme | None = None
    """The closed form of Combine's rows where Combine does not mirror Dispatch. None: it does."""
    peels: str = ""
    """Why ops of one template wait for each other. The verifier then checks op by op. "": the ops do not wait."""

    @property
    def has_real_form(self) -> bool:
        """Whether the system has a real form beside its paper form."""
        return self.real is not None

    def served(self, routing: Routing, options: Any) -> Routing:
        """The Routing that the system serves with `options`: what its tensors, its rows and its bounds are about."""
        return routing if self.serves is None else self.serves(routing, options)

    def plan(self, model: Model, cluster: Cluster, routing: Routing, direction: str, options: Any) -> Program:
        """The Program of one pass ("fwd" or "bwd") with `options`, an instance of `self.options`, on the served Routing.

        The option `form` chooses between `paper` and `real`; "auto" is `real` on hw clusters. Raises ConfigError for
        wrong options, ProgramError where the function returns something else.
        """
        form = self.form_on(cluster, options)
        chosen = self.real if self.real is not None and form == "real" else self.paper
        program: object = chosen(model, cluster, self.served(routing, options), direction, options)
        if not isinstance(program, Program):
            found = f"found {type(program).__name__} from {chosen.__name__}, expected a Program"
            raise ProgramError(f'system "{self.name}": {found} (`return layer.build(...)`)')
        return program

    def form_on(self, cluster: Cluster, options: Any) -> str:
        """The form of a run with `options` on `cluster`, "paper" or "real". Raises ConfigError where that form does not run on its fabric."""
        form = "real" if self.real is not None and is_real(options.form, cluster) else "paper"
        if not cluster.n_switches and form not in self.without_switch:
            others = ", ".join(name for name, one in all_systems().items() if form in one.without_switch)
            found = f"found no switch (every pair of GPUs has a link), expected a switch ({self.in_switch or 'its rows go by NVLink'})"
            raise ConfigError(f'{self.name} in {form} form on cluster "{cluster.name}": {found}; without one in {form} form: {others}')
        if form == "real" and 0 < self.most_domains < cluster.domains:
            raise ConfigError(f"{self.name}: found {cluster.domains} domains, expected at most {self.most_domains} (the kernels' limit)")
        if not self.runs_on(cluster, form):
            others = ", ".join(name for name, one in all_systems().items() if one.runs_on(cluster, form))
            found = f"found {cluster.domains} NVLink domains of {cluster.domain_gpus} GPUs"
            expected = f"expected one (systems for several in {form} form: {others})"
            why = f": {self.one_domain}" if self.one_domain else ""
            raise ConfigError(f'{self.name} in {form} form on cluster "{cluster.name}": {found}, {expected}{why}')
        return form

    def runs_on(self, cluster: Cluster, form: str) -> bool:
        """Whether the system runs on the domains of `cluster`, and without a switch where it has none, in `form`, "paper" or "real"."""
        near = cluster.domains == 1 or form in self.several_domains
        few = form == "paper" or not self.most_domains or cluster.domains <= self.most_domains
        return near and few and (cluster.n_switches > 0 or form in self.without_switch)

    def is_one_kernel(self, options: Mapping[str, Any]) -> bool:
        """Whether one kernel is the whole layer with these `options`."""
        return self.fused or options.get("gemms") == FUSED_GEMMS


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


def system(
    name: str,
    *,
    source: str,
    options: type,
    traffic: Scheme,
    permutes: int,
    fused: bool,
    real: Plan | None = None,
    drops: str = "",
    today: bool | None = None,
    bound: bool = False,
    gemm_variants: tuple[str, ...] = (),
    row_formats: tuple[str, ...] = ("rows",),
    colour: str = OTHER_COLOUR,
    change: Change | None = None,
    ships: Ships | None = None,
    serves: Serves | None = None,
    several_domains: tuple[str, ...] = (),
    most_domains: int = 0,
    without_switch: tuple[str, ...] = (),
    in_switch: str = "",
    one_domain: str = "",
    between_domains: str = "",
    returns: Scheme | None = None,
    peels: str = "",
) -> Callable[[Plan], Plan]:
    """Register a plan function as the paper form of the system `name`. The parameters are the fields of `System`.

    `permutes` and `fused` have no default, because they change layer times on hw clusters. `today` None: whether the
    system has a real form. Raises ConfigError where `real` comes without the option `form` or `gemm_variants` without
    the option `gemms` (or the other way round), for an option without a default, an unknown scheme of `traffic` or `returns`,
    negative `permutes`, and a colour that is not "#RRGGBB".
    """
    known = {f.name for f in dataclasses.fields(options)}
    for fact, declared, option in (("real", real is not None, "form"), ("gemm_variants", bool(gemm_variants), "gemms")):
        if declared != (option in known):
            raise ConfigError(f'system "{name}": found {fact if declared else f"option {option!r}"} alone, expected {fact} and option {option!r}')
    bare = [f.name for f in dataclasses.fields(options) if f.default is dataclasses.MISSING]
    if bare:
        raise ConfigError(f'system "{name}": found option {bare[0]!r} without a default, expected one')
    for fact, scheme in (("traffic", traffic), ("returns", returns)):
        if isinstance(scheme, str) and scheme not in SCHEMES:
            raise ConfigError(f'system "{name}": found {fact} {scheme!r}, expected a function or one of {", ".join(SCHEMES)}')
    if permutes < 0:
        raise ConfigError(f'system "{name}": found permutes {permutes}, expected 0 or more')
    if not re.fullmatch("#[0-9A-Fa-f]{6}", colour):
        raise ConfigError(f'system "{name}": found colour {colour!r}, expected "#RRGGBB"')

    def register(plan: Plan) -> Plan:
        _REGISTRY[name] = System(
            name=name,
            source=source,
            summary=_summary(name, plan),
            options=options,
            traffic=traffic,
            paper=plan,
            real=real,
            permutes=permutes,
            fused=fused,
            drops=drops,
            today=real is not None if today is None else today,
            bound=bound,
            gemm_variants=gemm_variants,
            row_formats=row_formats,
            colour=colour,
            change=change,
            ships=ships,
            serves=serves,
            several_domains=several_domains,
            most_domains=most_domains,
            without_switch=without_switch,
            in_switch=in_switch,
            one_domain=one_domain,
            between_domains=between_domains,
            returns=returns,
            peels=peels,
        )
        return plan

    return register


def _summary(name: str, plan: Plan) -> str:
    """The first line of the module, or of the plan where the module holds systems of other names."""
    own = (plan.__doc__ or "").strip().splitlines()
    if own and plan.__module__.rpartition(".")[2].replace("_", "-") != name:
        return own[0]
    return ((importlib.import_module(plan.__module__).__doc__ or "").strip().splitlines() or [""])[0]


@cache
def _scan() -> None:
    package = importlib.import_module("dysharp.systems")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"dysharp.systems.{module.name}")
    for entry in entry_points(group="dysharp.systems"):
        try:
            entry.load()
        except Exception as error:  # an entry point may raise anything; the error names the entry point
            raise ConfigError(f"entry point {entry.name} = {entry.value} (dysharp.systems): found {type(error).__name__}: {error}") from error


def all_systems() -> dict[str, System]:
    """Every registered system by name."""
    _scan()
    return dict(sorted(_REGISTRY.items()))


def get_system(name: str) -> System:
    """The system called `name`. Raises ConfigError with the nearest valid name."""
    systems = all_systems()
    if name not in systems:
        raise ConfigError(f"system {name!r}: unknown{nearest(name, systems)}")
    return systems[name]
