"""Which systems `advise` ranks, with which options, and why it leaves out the rest."""

from collections.abc import Mapping, Sequence

from dysharp.base import Cells, ConfigError
from dysharp.measured.family import all_families
from dysharp.runs import Phase, Request, Value, options_by_system, split_options
from dysharp.systems import System, all_systems, get_system

UNJUDGED = "no measurement judges it; --systems ranks it"


def candidates(names: Sequence[str] | None, request: Request, phase: Phase | None) -> tuple[dict[str, System], Cells]:
    """({name: system to rank}, {name: reason for leaving it out}).

    `names` None: every system that runs today and whose layer or parts some measurement judges; over several NVLink domains
    without those that `compare` runs by name only.
    A system that is asked for by name and has no kernel for this model, machine and phase is in both dictionaries.
    """
    if names is not None:
        chosen = {name: get_system(name) for name in names}
        for name, system in chosen.items():
            if not (system.today and system.has_real_form):
                raise ConfigError(f"advise: system {name} {_why_not(system)}, expected a system with a real form")
        if not chosen:
            raise ConfigError("advise: found no system, expected at least one")
        return chosen, _without_kernels(chosen, request, phase)
    today = {name: system for name, system in all_systems().items() if system.today}
    families = all_families()  # one may bear the name of the system that it measures
    judged = {name for family in families.values() for name in family.systems} | families.keys()
    judged -= {name for name, system in today.items() if system.reach.only_by_name(request.cluster, "real")}
    ranked = {name: system for name, system in today.items() if system.has_real_form and name in judged}
    real = {name: system for name, system in today.items() if system.has_real_form}
    return ranked, {name: _why_not(system) for name, system in today.items() if name not in ranked} | _without_kernels(real, request, phase)


def nothing_to_rank(not_ranked: Mapping[str, str], request: Request) -> str:
    """The error of advice that has no system left: the systems that `--systems` could rank, else why each system is left out."""
    by_name = [name for name, why in not_ranked.items() if why == UNJUDGED and get_system(name).reach.runs_on(request.cluster, "real")]
    start = f"advise: no system runs this on {request.cluster.name}: "
    if by_name:
        return f"{start}measurements judge the layer of no system; --systems {','.join(by_name)} ranks systems without measurements"
    return start + "; ".join(f"{name}: {why}" for name, why in not_ranked.items())


def options_to_run(systems: Mapping[str, System], request: Request) -> tuple[dict[str, dict[str, Value]], set[str]]:
    """Options of each system: the options that it ships with, replaced by the given options. Second: the systems with given options."""
    asked = split_options(request.options, systems)
    return options_by_system(request.options, systems, request.model, request.cluster), {name for name in asked if asked[name]}


def _without_kernels(systems: Mapping[str, System], request: Request, phase: Phase | None) -> Cells:
    """Systems without released kernels for this model on this machine in this phase, and why. Backward passes are training."""
    wanted = phase.name if phase else "train" if request.direction != "fwd" else ""
    reasons = {}
    for name, ships in ((name, s.ships) for name, s in systems.items()):
        lacks = "does not run on several NVLink domains" if request.cluster.n_switches else "does not run without a switch"
        most = systems[name].reach.most
        lacks = f"serves at most {most} NVLink domains" if 0 < most < request.cluster.domains else lacks
        why = "" if systems[name].reach.runs_on(request.cluster, "real") else lacks
        why = why or ("" if ships is None else ships.why_not(request.model, request.cluster) or (ships.lacks(wanted) if wanted else ""))
        if why:
            reasons[name] = why
    return reasons


def _why_not(system: System) -> str:
    if system.bound:
        return "is a bound, no system that one could build"
    if not system.today:
        return "runs on no machine of today" if system.has_real_form else "has no real form and runs on no machine of today"
    return UNJUDGED if system.has_real_form else "has no real form: its software costs are not known"
