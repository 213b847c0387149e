"""`make_routing`: from a routing string to a Routing with its placement."""

import zlib
from pathlib import Path

import numpy as np

from dysharp.base import F64, I32, ConfigError, Ints, Texts, frozen, show
from dysharp.specs import Model
from dysharp.specs.arguments import checked
from dysharp.workload.counts import load_counts
from dysharp.workload.deal import deal
from dysharp.workload.patterns import PATTERNS, draw_pattern
from dysharp.workload.placement import auto, place, replica_slots
from dysharp.workload.popularity import fit_weights, log_normal_weights, normal_weights, power_law_weights, published_spread, spread_counts
from dysharp.workload.routing import Routing, count_ids
from dysharp.workload.sampling import draw_group_limited, draw_uniform, draw_weighted
from dysharp.workload.spec import RoutingSpec, parse_routing
from dysharp.workload.traces import MAX_EXPERTS, Recording, layer_counts, load_trace, median_layer

MOST_SEED = 1 << 63
_MAX_ROWS = (1 << 31) - 1
_BYTES_PER_ROW = 32  # peak memory of sampling, placement and `pairs` per (token, expert)
_FLOOR = 1e-30  # a weight below this part of the largest weight is never drawn


@frozen
class _Choice:
    """Logical expert ids of all tokens, and their description for a header."""

    expert: I32
    description: str
    synthetic: bool
    notes: Texts = ()
    layer: int | None = None


@checked
def make_routing(
    spec: str | Routing, model: Model, n_gpus: int, tokens_per_gpu: int, *, seed: int = 0, layer: int | None = None, placement: str = "auto"
) -> Routing:
    """The expert choices of `n_gpus * tokens_per_gpu` tokens in one MoE layer of `model`, placed on GPUs.

    spec
        `uniform`, `normal:STD`, `normal-literal:STD`, `normal-cv:CV`, `powerlaw:ALPHA`, `lognormal:SIGMA` or
        `counts:FILE[:layer=L][:model=NAME]` or `loads:NAME_OR_FILE[:layer=L]`, each with an optional `:group-limited`; a pattern of
        `patterns.PATTERNS`, such as `hot-experts:K=4:share=0.5` or `ragged:0.25`;
        or `trace:NAME_OR_FILE[:layer=L][:window=in-order|decode|mixed]`. A Routing stays as it is, but for a `placement` other than `auto`.
    layer
        Of a recording: the layer to replay (None: the layer of median imbalance).
        Of a distribution: another number gives another draw of the popularity.
    placement
        `contiguous`, `auto`, `eplb[:slots=N]`, `exact` or a `.json`/`.toml` file.

    Equal arguments give equal Routings. Raises ConfigError for arguments that do not fit each other or the model.
    """
    _check_sizes(model, n_gpus, tokens_per_gpu, seed)
    if isinstance(spec, Routing):
        return _given(spec, model, n_gpus, tokens_per_gpu, placement)
    parsed = parse_routing(spec)
    layer = _one_layer(spec, parsed.layer, layer)
    if parsed.name == "trace":
        choice = _from_trace(parsed, model, n_gpus, tokens_per_gpu, seed, layer)
    elif parsed.name in PATTERNS:
        choice = _from_pattern(parsed, model, n_gpus, tokens_per_gpu, seed, layer)
    else:
        choice = _from_weights(parsed, model, n_gpus, tokens_per_gpu, seed, layer)
    return _placed(choice, model.n_experts, n_gpus, placement)


def _placed(choice: _Choice | Routing, n_experts: int, n_gpus: int, placement: str) -> Routing:
    expert = choice.expert
    placed = place(placement, n_experts, n_gpus, count_ids(expert, n_experts))
    slot = replica_slots(expert, placed, n_experts)
    tokens = len(expert) // n_gpus
    return Routing(expert, slot, n_gpus, tokens, n_experts, placed, choice.description, choice.synthetic, choice.notes, choice.layer)


def _given(routing: Routing, model: Model, n_gpus: int, tokens_per_gpu: int, placement: str) -> Routing:
    sizes = "{} GPUs with {} tokens each, top-{} of {} experts"
    found = sizes.format(routing.n_gpus, routing.tokens_per_gpu, routing.topk, routing.n_experts)
    expected = sizes.format(n_gpus, tokens_per_gpu, model.topk, model.n_experts)
    if found != expected:
        raise ConfigError(f"routing: found choices of {found}, expected {expected}")
    return routing if placement == "auto" else _placed(routing, routing.n_experts, n_gpus, placement)


def routing_from(expert: Ints, n_experts: int, n_gpus: int, *, placement: str = "auto") -> Routing:
    """The Routing of choices that the caller brings.

    `expert`: `[tokens, topk]` integers, -1 = dropped. The tokens are in GPU order, and their number is a multiple of `n_gpus`. Raises ConfigError
    that names token and column for an unknown expert and for an expert that a token chooses twice.
    """
    expert = np.asarray(expert)
    if expert.ndim != 2 or expert.dtype.kind not in "iu":
        raise ConfigError(f"routing: found {expert.dtype} of shape {expert.shape}, expected integers of shape [tokens, topk]")
    if expert.shape[0] == 0 or expert.shape[0] % n_gpus:
        raise ConfigError(f"routing: found {expert.shape[0]} tokens, expected a positive multiple of {n_gpus} GPUs")
    wrong = (expert < -1) | (expert >= n_experts)
    if wrong.any():
        token, column = np.argwhere(wrong)[0]
        raise ConfigError(f"routing: token {token}, column {column}: found expert {expert[token, column]}, expected 0 to {n_experts - 1} or -1")
    ordered = np.sort(expert, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        token, column = np.argwhere(twice)[0]
        raise ConfigError(f"routing: token {token}: found expert {ordered[token, column]} twice, expected distinct experts")
    return _placed(_Choice(expert.astype(np.int32), "given choices", True, (), None), n_experts, n_gpus, placement)


def _check_sizes(model: Model, n_gpus: int, tokens_per_gpu: int, seed: int) -> None:
    from dysharp.base.processes import physical_bytes

    for name, value in (("gpus", n_gpus), ("tokens per GPU", tokens_per_gpu)):
        if value < 1:
            raise ConfigError(f"routing: found {value} {name}, expected at least 1")
    if not 0 <= seed < MOST_SEED:
        raise ConfigError(f"routing: found seed {show(seed)}, expected {'0 or more' if seed < 0 else 'a number below 2^63'}")
    if model.n_experts > MAX_EXPERTS:
        raise ConfigError(f"routing: found {model.n_experts} experts, expected at most {MAX_EXPERTS}")
    n_rows = n_gpus * tokens_per_gpu * model.topk
    if n_rows > _MAX_ROWS:
        raise ConfigError(f"routing: {n_gpus} GPUs x {tokens_per_gpu} tokens x top-{model.topk} = {n_rows} rows, expected at most {_MAX_ROWS}")
    needed, available = n_rows * _BYTES_PER_ROW, physical_bytes()
    if needed > available:
        raise ConfigError(
            f"routing: {n_gpus} GPUs x {tokens_per_gpu} tokens x top-{model.topk} need about "
            f"{needed / 2**30:.0f} GiB, this computer has {available / 2**30:.0f} GiB"
        )


def _one_layer(spec: str, in_spec: int | None, argument: int | None) -> int | None:
    if in_spec is not None and argument is not None and in_spec != argument:
        raise ConfigError(f"routing {spec}: found layer={in_spec} in the string and layer {argument} as argument, expected one layer")
    if argument is not None and not 0 <= argument < MOST_SEED:
        raise ConfigError(f"routing {spec}: found layer {show(argument)}, expected {'0 or more' if argument < 0 else 'a number below 2^63'}")
    return argument if in_spec is None else in_spec


def _stream(seed: int, name: str, layer: int | None = None) -> np.random.Generator:
    """A named stream of random numbers. A new stream does not change existing streams."""
    key = (zlib.crc32(name.encode()), 0 if layer is None else layer + 1)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _from_weights(parsed: RoutingSpec, model: Model, n_gpus: int, tokens_per_gpu: int, seed: int, layer: int | None) -> _Choice:
    notes: Texts = ()
    taken = layer
    if parsed.name == "counts":
        weight, description, notes, taken = _counted(parsed, model, n_gpus, layer)
    elif parsed.name == "loads":
        weight, description, notes, taken = _with_loads(parsed, model, n_gpus, seed, layer)
        layer = taken  # the median layer is drawn as when it is named
    else:
        weight, description = _popularity(parsed, model, seed, layer)
    rng = _stream(seed, "routing.tokens", layer)
    n_tokens = n_gpus * tokens_per_gpu
    if parsed.group_limited:
        _check_groups(parsed, model, weight)
        description += f", group-limited {model.topk_group} of {model.n_group}"
        expert = draw_group_limited(rng, n_tokens, weight, model.topk, model.n_group, model.topk_group)
    else:
        few = f"a gate of {model.name} takes experts of {model.topk_group} of {model.n_group} groups, this draw of all (not with :group-limited)"
        notes += (few,) * (model.topk_group < model.n_group)
        uniform = parsed.name == "uniform"
        expert = draw_uniform(rng, n_tokens, model.n_experts, model.topk) if uniform else draw_weighted(rng, n_tokens, weight, model.topk)
    if parsed.name != "uniform":
        description += " (synthetic)"
    return _Choice(expert, description, True, notes, taken)


def _from_pattern(parsed: RoutingSpec, model: Model, n_gpus: int, tokens_per_gpu: int, seed: int, layer: int | None) -> _Choice:
    rng = _stream(seed, f"routing.{parsed.name}", layer)
    expert, description, notes = draw_pattern(parsed.name, dict(parsed.settings), model, n_gpus, tokens_per_gpu, rng)
    return _Choice(expert, f"{description} (synthetic)", True, notes, layer)


def _popularity(parsed: RoutingSpec, model: Model, seed: int, layer: int | None) -> tuple[F64, str]:
    """The weight of every expert under a distribution, [n_experts] float64, and the description of the distribution."""
    rng = _stream(seed, "routing.popularity", layer)
    n_experts, value = model.n_experts, parsed.value
    if parsed.name == "uniform":
        weight, description = np.ones(n_experts), "uniform"
    elif parsed.name == "powerlaw":
        weight = power_law_weights(rng, n_experts, value)
        description = f"power law alpha {value:g}"
    elif parsed.name == "lognormal":
        weight = log_normal_weights(rng, n_experts, value)
        description = f"lognormal sigma {value:g}"
    else:
        cv = {"normal": published_spread(value), "normal-literal": value * n_experts, "normal-cv": value}[parsed.name]
        weight = normal_weights(rng, n_experts, cv)
        description = f"{parsed.name.replace('-', ' ')} {value:g}, spread {cv:g} of the mean"
    weight[weight < _FLOOR * weight.max()] = 0.0
    possible = int((weight > 0).sum())
    if possible < model.topk:
        raise ConfigError(
            f"routing {parsed.name}:{value:g}: too skewed, only {possible} of {n_experts} experts "
            f"would ever be chosen, expected at least top-{model.topk}"
        )
    return weight, description


def _counted(parsed: RoutingSpec, model: Model, n_gpus: int, layer: int | None) -> tuple[F64, str, Texts, int]:
    table = load_counts(Path(parsed.source), parsed.model)
    row = table.row(layer, auto(table.n_experts, n_gpus))
    count = table.count[row]
    where = f"{parsed.source}: {table.model} layer {table.layers[row]}"
    if table.n_experts != model.n_experts:
        raise ConfigError(f"{where}: counts of {table.n_experts} experts, the model has {model.n_experts}")
    if int((count > 0).sum()) < model.topk:
        raise ConfigError(f"{where}: {int((count > 0).sum())} experts have a count, expected at least {model.topk}")
    weight, capped = fit_weights(count, model.topk)
    number = table.layers[row]
    return weight, f"counts {table.model} layer {number}", _cut_note(model) if capped else (), number


def _cut_note(model: Model) -> Texts:
    return (f"counts above one choice per token at top-{model.topk} were cut",)


def _with_loads(parsed: RoutingSpec, model: Model, n_gpus: int, seed: int, layer: int | None) -> tuple[F64, str, Texts, int]:
    """Weights whose draws give the experts of `model` the loads of a recorded layer, and description, notes, layer number."""
    trace = load_trace(parsed.source)
    row = trace.row_of(layer) if layer is not None else median_layer(trace, auto(trace.n_experts, n_gpus))
    number = trace.layers[row]
    count = spread_counts(_stream(seed, "routing.popularity", number), layer_counts(trace, row), model.n_experts)
    if int((count > 0).sum()) < model.topk:
        raise ConfigError(f"routing loads:{trace.name} layer {number}: {int((count > 0).sum())} experts have a load, expected at least {model.topk}")
    weight, capped = fit_weights(count, model.topk)
    notes = (f"loads of {trace.n_experts} experts at top-{trace.topk}, dealt to {model.n_experts} experts; tokens are drawn",)
    return weight, f"loads of {trace.name} layer {number}", notes + (_cut_note(model) if capped else ()), number


def _check_groups(parsed: RoutingSpec, model: Model, weight: F64) -> None:
    if model.n_group <= 1:
        raise ConfigError(f"routing {parsed.name}: group-limited needs expert groups, model {model.name} has n_group = {model.n_group}")
    possible = np.sort((weight.reshape(model.n_group, -1) > 0).sum(axis=1))[: model.topk_group].sum()
    if possible < model.topk:
        raise ConfigError(
            f"routing {parsed.name}: {model.topk_group} groups may hold only {possible} experts "
            f"with a chance above zero, expected at least top-{model.topk}"
        )


def _from_trace(parsed: RoutingSpec, model: Model, n_gpus: int, tokens_per_gpu: int, seed: int, layer: int | None) -> _Choice:
    trace = load_trace(parsed.source)
    _check_trace(trace, model)
    row = trace.row_of(layer) if layer is not None else median_layer(trace, auto(trace.n_experts, n_gpus))
    rng = _stream(seed, "routing.deal")
    expert, notes = deal(trace, row, n_gpus, tokens_per_gpu, parsed.window, rng)
    description = f"trace {trace.name} layer {trace.layers[row]} {parsed.window}"
    if layer is None:
        notes = (f"layer {trace.layers[row]} has the median imbalance on {n_gpus} GPUs", *notes)
    if trace.synthetic:
        description += f", {trace.origin} (synthetic)"
    return _Choice(expert, description, trace.synthetic, notes, trace.layers[row])


def _check_trace(trace: Recording, model: Model) -> None:
    if (trace.n_experts, trace.topk) != (model.n_experts, model.topk):
        raise ConfigError(
            f"trace {trace.name}: recorded with top-{trace.topk} of {trace.n_experts} experts, "
            f"model {model.name} has top-{model.topk} of {model.n_experts}; expected the model of the trace, or another routing"
        )
