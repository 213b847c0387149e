"""`serve`: which layout of a model serves users best on a machine, what limits it, and what would help."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Unpack, cast

import numpy as np

from dysharp.api.arguments import ServeArgs, Slo
from dysharp.api.learning import posterior_of
from dysharp.api.serving_answer import Serving, sharing
from dysharp.api.serving_replay import replays
from dysharp.api.serving_systems import ep_systems, merged_layers
from dysharp.api.tensor_parallel import serving_curves
from dysharp.base import Amounts, ByName, ConfigError, Texts, show
from dysharp.costs import machine_of
from dysharp.measured.learned import kernels_of
from dysharp.model import formats_of, published
from dysharp.runs.request import routing_string, takes
from dysharp.serving.answers import break_even, overlap_of, part_shares, slots_of
from dysharp.serving.balance import loads_of
from dysharp.serving.disaggregated import best_disaggregated
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.exchange import ep_system_of, shipped
from dysharp.serving.launch_reader import Launch, read_launch
from dysharp.serving.layout import ServeLayout, serve_layout_of
from dysharp.serving.replay.requests import requests_of
from dysharp.serving.search import ServePoint, front, layouts_of, search, within
from dysharp.serving.whatif import Asked, what_ifs
from dysharp.serving.work import Replica, Scenario
from dysharp.specs import Cluster, WholeModel, load_cluster, load_whole
from dysharp.specs.hf_whole import lines_on


@takes(ServeArgs)
def serve(model: str | WholeModel | None = None, cluster: str | Cluster = "hw-dgx-h200", **request: Unpack[ServeArgs]) -> Serving:
    """Search the layouts of `model` on GPUs of `cluster` for requests of mean lengths `isl` and `osl`. Raises ConfigError for wrong input.

    `model` None: that of `launch`, else deepseek-v3.
    """
    machine = load_cluster(cluster)
    launch = read_launch(request["launch"], model, machine.hbm_bytes, machine.gpu) if request["launch"] is not None else None
    if launch:
        request = _launched(launch, request, machine)
    whole, rules = (launch.model, launch.engine) if launch else (load_whole(model or "deepseek-v3"), engine_of(request["engine"] or "vllm"))
    mtp = request["mtp"] or 0
    request = {**request, "engine": rules.name, "mtp": mtp}
    count, layouts, tick = machine.n_gpus if request["gpus"] is None else request["gpus"], request["layouts"], request["tick"]
    _check(whole, request)
    traced = requests_of(request["requests"], request["isl"], request["osl"]) if request["requests"] else None
    if traced is not None:
        request = {**request, "isl": max(1, round(traced.prompt)), "osl": max(2, round(traced.output))}
    worker = _start(whole, machine.with_gpus(count), rules, request)  # of prompts or of decoding
    start = replace(worker, ep_by_flag=rules.ep_by_flag)
    if launch and start.ep_system.startswith("deepep"):  # a line of one server names one kind of DeepEP's kernels; pools have both
        worker = replace(worker, ep_system="deepep")
    wanted = [one if isinstance(one, ServeLayout) else serve_layout_of(one) for one in layouts] if layouts is not None else None
    tried = list(layouts_of(start, count)) if wanted is None else wanted
    accepted = sum(request["acceptance"] ** n for n in range(mtp + 1))
    scenario, limits = Scenario(1.0, float(request["isl"]), float(request["osl"]), accepted, mtp), slo_of(request["slo"])
    names, told = iter(range(len(tried))), launch.lines if launch else ()
    uncapped = replace(rules, most_requests=engine_of(rules.name).most_requests)  # a line says how many requests its own server takes
    points, rejected = search(start, rules, scenario, count, tried, lambda text: tick(next(names), len(tried), text))
    only = None if wanted is None else tuple(wanted)
    asked = Asked(start, rules, scenario, count, only, limits.ttft * 1e3, limits.tpot * 1e3, request["acceptance"])
    best = within(points, asked.ttft, asked.tpot)
    found = Serving(
        whole.name, machine.name, count, rules, limits, request["users"], tuple(best), tuple(front(points)), tuple(points), tuple(rejected),
        (*told, *_header(whole, start, scenario, request)), best_disaggregated(worker, uncapped, scenario, count, asked.ttft, asked.tpot, wanted),
        formats=shipped(start).to_dict(start.machine.products),
    )  # fmt: skip
    if best and (own := posterior_of(cluster, "serving", kernels_of([start.own]))):
        first, base = best[0], start.machine.cluster
        at = lambda change: np.log([(first.on(replace(first.replica, machine=machine_of(change(base), "serving"))) or first).served.tpot])  # noqa: E731
        found = replace(found, learned=own.interval(at))
    tell = partial(tick, len(tried), len(tried))
    found = _explained(found, asked, request, tell) if best else found
    if traced is None or not points:
        return found
    named = {point.replica.layout: point for point in (*best, *points)} if wanted is not None else {}
    replayed = [*named.values()] or best[:1] or [min(points, key=lambda point: point.served.tpot)]
    return replace(found, replays=replays(replayed, worker, rules, count, traced, limits, request, tell, launch is None or launch.prefixes))


def _launched(launch: Launch, request: ServeArgs, machine: Cluster) -> ServeArgs:
    """The request for what a launch line starts. Raises ConfigError where an option says something else."""
    said: ByName = {"engine": launch.engine.name, "layouts": [launch.layout], **launch.options}
    asked: ByName = dict(request)
    if (layouts := asked["layouts"]) is not None:
        asked["layouts"] = [one if isinstance(one, ServeLayout) else serve_layout_of(one) for one in layouts]
    for name, value in [*said.items(), ("pools", None)]:
        if asked[name] not in (None, "", value):
            found, line = ([", ".join(layout.name for layout in one) if name == "layouts" else one for one in (asked[name], value)])
            raise ConfigError(f"serve: --{name.replace('_', '-')}: found {show(found)} beside a launch line with {line}, expected one of the two")
    size = launch.options.get("gpus", launch.layout.gpus)
    if machine.n_gpus < size and asked["gpus"] is None:
        least = f"expected a --cluster of as many: {machine.name} has {machine.n_gpus}"
        raise ConfigError(f"serve: found a launch line of {size} GPUs ({launch.layout.name}), {least}")
    return cast(ServeArgs, asked | {"gpus": asked["gpus"] or machine.n_gpus // size * size} | said)


def _start(whole: WholeModel, machine: Cluster, rules: Engine, request: ServeArgs) -> Replica:
    """What all layouts share."""
    name, on = published(whole, request["precision"] or ""), machine_of(machine, "serving")
    name = rules.blackwell_mxfp4 if (name, on.arch, request["precision"]) == ("mxfp4", "blackwell", None) else name
    usual = "bf16" if on.products("fp8") == "bf16" else rules.cached(formats_of(name, model=whole), whole, on.arch)
    formats = formats_of(name, request["kv"] or usual, whole)
    formats = replace(formats, kv=request["kv"]) if request["kv"] and not request["precision"] else formats  # not what the checkpoint says
    loads = () if request["routing"] is None else loads_of(whole, routing_string(request["routing"]))
    curves = serving_curves(request["tensor"], whole, machine) if request["tensor"] else None
    start = Replica(whole, formats, ServeLayout(), on, request["ep_system"], curves, rules.reducers, loads, bool(request["mtp"]))
    ep_system_of(start)  # a name that is not known is refused, whether a layout sends tokens or not
    return start


def _explained(found: Serving, asked: Asked, request: ServeArgs, tell: Callable[[str], None]) -> Serving:
    """With what else was asked about the best points."""
    best, mtp, routing, systems = list(found.best), request["mtp"], request["routing"], request["systems"]
    return replace(
        found, what_ifs=tuple(what_ifs(asked, best[0], tell)) if request["what_if"] else (),
        overlap=overlap_of(best[0]), slots=tuple(slots_of(sharing(best))), break_even=break_even(best[0], mtp) if mtp else None,
        systems=() if systems is None else ep_systems(_sending(best), systems, routing),
        layers=merged_layers(best[0], routing) if request["merged"] else None,
    )  # fmt: skip


REPLAYED_ONLY = {"router": "least-load", "tiers": None, "pools": None, "fail": None, "price": 0}
"""Arguments of a replay, and what says nothing."""
REPLAYED = "replay: the first tenth of 20 requests or more warms the replicas up and is not measured, the others are; prefixes are cached"


def _sending(best: list[ServePoint]) -> ServePoint:
    """The best point whose groups send tokens to shared experts, else the best."""
    return next((point for point in best if point.replica.layout.dp > 1 and point.replica.layout.ep == point.replica.layout.stage_gpus), best[0])


def _check(whole: WholeModel, request: ServeArgs) -> None:
    mtp, acceptance = request["mtp"], request["acceptance"]
    alone = next((name for name, value in REPLAYED_ONLY.items() if request.get(name) not in (value, "")), None)
    if alone and not request["requests"]:
        raise ConfigError(f"serve: found --{alone} without --requests, expected both: only a replay counts it")
    if unused := [name for name in ("routing", "ep_system") if request[name] and not whole.layer and not request["launch"]]:
        raise ConfigError(f"serve: found --{unused[0].replace('_', '-')}, expected none: {whole.name} has no experts")
    if mtp and not whole.mtp:
        raise ConfigError(f"serve: mtp: found {mtp}, expected 0: {whole.name} has no MTP layers")
    if not 0 < acceptance < 1:
        raise ConfigError(f"serve: acceptance: found {acceptance}, expected a number above 0 and below 1")


def _header(whole: WholeModel, start: Replica, scenario: Scenario, request: ServeArgs) -> Texts:
    """What the numbers rest on."""
    formats, cluster, routing, engine, tensor = start.formats, start.machine.cluster, request["routing"], request["engine"], request["tensor"]
    chosen = "experts chosen by popularity, " if routing is None else f"experts loaded as in {routing}, "
    drafts = f"draft tokens: {scenario.draft_tokens}, {scenario.accepted:.2f} tokens a step" if scenario.draft_tokens else "no speculative decoding"
    tokens, said = request["isl"] + request["osl"], "the launch line" if request["launch"] else f"{whole.name}'s config"
    longer = f"a request of {tokens:,} tokens is longer than the {whole.context:,} of {said}: engines refuse it as it is"
    weights = f"{whole.name} ({formats.experts if whole.layer else formats.dense} weights, {formats.kv} KV)"
    return (
        f"{weights} on {cluster.n_gpus} GPUs of {cluster.name} under {engine}; ISL {scenario.isl:g}, OSL {scenario.osl:g}",
        shipped(start).line(whole, start.machine.products),
        *lines_on(whole),
        *([longer] if 0 < whole.context < tokens else []),
        *(["slow and lost NICs of the network are not counted"] if cluster.scale_out and cluster.scale_out.rates(cluster.n_gpus) else []),
        f"steady state of a fixed number of users; {chosen if whole.layer else ''}no prefix cache; {drafts}",
        *([REPLAYED] if request["requests"] else []),
        *([f"tensor parallelism of steps with many tokens: {tensor}, a Row of each sub-layer"] if tensor else []),
    )


def slo_of(text: str | Slo | None) -> Slo:
    """Limits from text such as "ttft=2s,tpot=50ms", or as they are. Raises ConfigError."""
    if not isinstance(text, str):
        return text or Slo()
    limits = Amounts()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = part.partition("=")
        unit = next((u for u in ("ms", "us", "s") if value.endswith(u)), "")
        try:
            number = float(value.removesuffix(unit)) * {"ms": 1.0, "us": 1e-3, "s": 1e3}[unit]
        except (ValueError, KeyError):
            number = math.nan
        if key not in ("ttft", "tpot") or not 0 < number < math.inf:
            raise ConfigError(f"slo: found {part!r}, expected ttft=TIME or tpot=TIME with a unit, such as ttft=2s or tpot=50ms")
        if key in limits:
            raise ConfigError(f"slo: found {key} twice in {text!r}, expected each limit once")
        limits[key] = number
    return Slo(**limits)


__all__ = ["Serving", "Slo", "part_shares", "serve", "slo_of"]
