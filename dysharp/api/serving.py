"""`serve`: which layout of a model serves users best on a machine, what limits it, and what would help."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from dysharp.api.serving_answer import Serving, Slo
from dysharp.api.serving_systems import ep_systems, prompt_layer
from dysharp.api.tensor_parallel import serving_curves
from dysharp.errors import ConfigError
from dysharp.serving.advice import break_even, overlap_of, slots_of
from dysharp.serving.answers import part_shares
from dysharp.serving.apart import best_apart
from dysharp.serving.balance import loads_of
from dysharp.serving.engine import engine_of
from dysharp.serving.formats import formats_of
from dysharp.serving.layout import ServeLayout, serve_layout_of
from dysharp.serving.rates import rates_of
from dysharp.serving.search import ServePoint, front, layouts_of, search, within
from dysharp.serving.whatif import Asked, what_ifs
from dysharp.serving.work import Load, Replica
from dysharp.specs import Cluster, load_cluster, load_whole
from dysharp.specs.whole import WholeModel

MOST_DRAFTS = 8
Tick = Callable[[int, int, str], None]


def serve(
    model: str | WholeModel = "deepseek-v3",
    cluster: str | Cluster = "hw-dgx-h200",
    *,
    gpus: int | None = None,
    isl: int = 4096,
    osl: int = 1024,
    engine: str = "vllm",
    precision: str | None = None,
    kv: str | None = None,
    slo: Slo | None = None,
    users: int | None = None,
    layouts: Iterable[str | ServeLayout] | None = None,
    ep_system: str = "",
    tensor: str = "",
    mtp: int = 0,
    acceptance: float = 0.8,
    routing: str | None = None,
    what_if: bool = False,
    systems: Iterable[str] | None = None,
    merged: bool = False,
    tick: Tick = lambda done, total, text: None,
) -> Serving:
    """Search the layouts of `model` on `gpus` GPUs of `cluster` (default: all) for prompts of `isl` and answers of `osl` tokens.

    | argument | meaning |
    |---|---|
    | `precision` | of the weights (`serving.formats.PRECISIONS`); default FP8 where the model's experts are FP8, else BF16 |
    | `kv` | type of cached values; default the engine's |
    | `slo` | limits of mean TTFT and TPOT |
    | `users` | also how many GPUs serve so many |
    | `layouts` | only these |
    | `ep_system` | EP kernels |
    | `tensor` | system of tensor-parallel sub-layers (`dysharp list sub-layers`); its Rows take the place of all-reduces of prompts |
    | `mtp`, `acceptance` | drafts of a step and request; the part of drafts that is accepted if those before it were |
    | `routing` | recorded or drawn expert choices, as for `compare`: uneven experts, and what EPLB brings |
    | `what_if` | also search other machines: no communication, DySHARP, MoE-Hub, larger domains, faster NICs; and a dead GPU |
    | `systems` | EP systems under which a layer is simulated at the best point with dispatch, as a merged Program |
    | `merged` | also the system of that point, in decoding and with prompts: its Program beside the closed form |
    | `tick` | called with layouts done, their number, and a name |

    Raises ConfigError for wrong input.
    """
    whole, rules = model if isinstance(model, WholeModel) else load_whole(model), engine_of(engine)
    machine = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    count = gpus or machine.n_gpus
    machine = machine.with_gpus(count)
    _check(isl, osl, users, mtp, acceptance)
    name = precision or ("fp8" if whole.layer is not None and whole.layer.gemm_dtype == "fp8" else "bf16")
    formats = formats_of(name, kv or (rules.kv if name != "bf16" else "bf16"))
    loads = () if routing is None else loads_of(whole, routing)
    curves = serving_curves(tensor, whole, machine) if tensor else None
    start = Replica(whole, formats, ServeLayout(), rates_of(machine), ep_system, curves, rules.reducers, loads)
    wanted = [one if isinstance(one, ServeLayout) else serve_layout_of(one) for one in layouts] if layouts is not None else None
    tried = list(layouts_of(start, count)) if wanted is None else wanted
    accepted = sum(acceptance**n for n in range(mtp + 1))
    load, limits = Load(1.0, float(isl), float(osl), accepted, mtp), slo or Slo()
    names = iter(range(len(tried)))
    points, rejected = search(start, rules, load, count, tried, lambda text: tick(next(names), len(tried), text))
    asked = Asked(start, rules, load, count, None if wanted is None else tuple(wanted), limits.ttft * 1e3, limits.tpot * 1e3)
    best = within(points, asked.ttft, asked.tpot)
    first = best[0] if best else None
    found = Serving(
        whole.name, machine.name, count, rules, limits, users, tuple(best), tuple(front(points)), tuple(points), tuple(rejected),
        _header(whole, start, engine, load, routing, tensor), best_apart(start, rules, load, count, asked.ttft, asked.tpot, wanted),
    )  # fmt: skip
    if first is None:
        return found
    drafts = break_even(first, mtp) if mtp else None
    changed = tuple(what_ifs(asked, first, lambda text: tick(len(tried), len(tried), text))) if what_if else ()
    sending = _sending(best)
    asked_for = [*(systems or ()), *([sending.system or "none"] if merged else [])]
    simulated = ep_systems(sending, dict.fromkeys(asked_for), routing) if systems is not None or merged else ()
    return replace(
        found, what_ifs=changed, overlap=overlap_of(first), slots=tuple(slots_of(_sharing(best))), break_even=drafts, systems=simulated,
        prompt_layer=prompt_layer(sending, routing) if merged else None,
    )  # fmt: skip


def _sending(best: list[ServePoint]) -> ServePoint:
    """The best point whose groups send tokens to shared experts, else the best."""
    return next((point for point in best if point.replica.layout.dp > 1 and point.replica.layout.ep == point.replica.layout.stage_gpus), best[0])


def _sharing(best: list[ServePoint]) -> ServePoint:
    """The best point whose GPUs share experts, else the best."""
    return next((point for point in best if point.replica.layout.ep > 1), best[0])


def _check(isl: int, osl: int, users: int | None, mtp: int, acceptance: float) -> None:
    for name, value, least in (("isl", isl, 1), ("osl", osl, 2), ("users", 1 if users is None else users, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 24:
            raise ConfigError(f"serve: {name}: found {value!r}, expected a whole number of at least {least}")
    if not 0 <= mtp <= MOST_DRAFTS or not 0 < acceptance < 1:
        drafts = f"expected 0 to {MOST_DRAFTS} drafts and an acceptance between 0 and 1"
        raise ConfigError(f"serve: mtp: found {mtp} drafts and acceptance {acceptance}, {drafts}")


def _header(whole: WholeModel, start: Replica, engine: str, load: Load, routing: str | None, tensor: str) -> tuple[str, ...]:
    """What the numbers rest on."""
    formats, cluster = start.formats, start.rates.cluster
    chosen = "chosen by popularity" if routing is None else f"loaded as in {routing}"
    drafts = f"{load.drafts} drafts, {load.accepted:.2f} tokens a step" if load.drafts else "no speculation"
    weights = f"{whole.name} ({formats.experts if whole.layer else formats.dense} weights, {formats.kv} KV)"
    return (
        f"{weights} on {cluster.n_gpus} GPUs of {cluster.name} under {engine}; prompts of {load.prompt:g}, answers of {load.answer:g} tokens",
        f"steady state of a fixed number of users; experts {chosen}, no prefix cache; {drafts}",
        *([f"tensor parallelism of steps with many tokens: {tensor}, a Row of each sub-layer"] if tensor else []),
    )


def slo_of(text: str) -> Slo:
    """Limits from text such as "ttft=2s,tpot=50ms". Raises ConfigError."""
    slo = Slo()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = part.partition("=")
        unit = next((u for u in ("ms", "us", "s") if value.endswith(u)), "")
        try:
            number = float(value.removesuffix(unit)) * {"ms": 1.0, "us": 1e-3, "s": 1e3}[unit]
        except (ValueError, KeyError):
            number = math.nan
        if key not in ("ttft", "tpot") or not 0 < number < math.inf:
            raise ConfigError(f"slo: found {part!r}, expected ttft=TIME or tpot=TIME with a unit, such as ttft=2s or tpot=50ms")
        slo = replace(slo, **{key: number})
    return slo


__all__ = ["Serving", "Slo", "part_shares", "serve", "slo_of"]
