"""Placements of experts on GPUs: contiguous, `auto`, EPLB's greedy, global or by node, an exact plan, a file; shadows of hot experts (FasterMoE)."""

import heapq
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import F64, I32, ByName, ConfigError, Ints, Reals, Texts, check_word, nearest
from dysharp.base.reading import check_bounded, json_of, parse_toml, read_text
from dysharp.specs import choice_int, choice_str
from dysharp.workload.balance import CHOOSES, by_quota, exact_slots
from dysharp.workload.routing import PREFETCHES, Moved, Placement, Routing

_KINDS = ("contiguous", "auto", "eplb", "eplb:slots=N", "eplb:nodes=N,groups=G", "exact", "NAME:choose=RULE", "FILE.json", "FILE.toml")
_MAX_SLOTS = 1 << 20
_OPTIONS: dict[str, dict[str, Texts]] = {
    "eplb": {"slots": (), "nodes": (), "groups": ()},
    "exact": {"slots": (), "least": (), "plan": (), "prefetch": PREFETCHES, "weights": ("direct", "relay")},
}
"""Kind of placement -> its options with their words, () = a whole number."""


def contiguous(n_experts: int, n_gpus: int) -> Placement:
    """Expert `e` lies on GPU `e // (n_experts / n_gpus)`. Raises ConfigError unless `n_gpus` divides `n_experts`."""
    if n_experts % n_gpus:
        raise ConfigError(f"placement contiguous: {n_experts} experts do not divide by {n_gpus} GPUs; use placement auto (adds replicas) or eplb")
    return Placement(n_gpus, n_experts // n_gpus, np.arange(n_experts, dtype=np.int32), "contiguous", "")


def auto(n_experts: int, n_gpus: int) -> Placement:
    """`contiguous` if `n_gpus` divides `n_experts`. Otherwise the first experts get replicas.

    Every GPU gets `ceil(n_experts / n_gpus)` expert slots, and slot `s` holds expert `s % n_experts`. 256 experts on 72 GPUs fill 288 slots: the last
    32 slots hold second copies of experts 0 to 31. 8 experts on 32 GPUs have four copies each.
    """
    if n_experts % n_gpus == 0:
        even = contiguous(n_experts, n_gpus)
        return Placement(n_gpus, even.slots_per_gpu, even.slot_expert, "auto", "")
    per_gpu = -(-n_experts // n_gpus)
    slot_expert = (np.arange(n_gpus * per_gpu) % n_experts).astype(np.int32)
    return Placement(n_gpus, per_gpu, slot_expert, "auto", _note(slot_expert, n_experts, n_gpus))


def eplb(load: Reals, n_gpus: int, n_slots: int | None = None, *, n_nodes: int = 1, n_groups: int = 1) -> Placement:
    """The greedy of deepseek-ai/EPLB: it replicates the hottest experts and packs the heaviest replicas first.

    With several nodes it is the hierarchical one: groups of neighbouring experts go to nodes, the heaviest first, equally
    many to each; every node replicates and packs its own experts. Nodes are runs of neighbouring GPUs.

    `load`: [n_experts] non-negative load. `n_slots`: expert slots of all GPUs, a multiple of `n_gpus` and at least
    `n_experts`. Default: one slot per GPU more than the experts need, as in DeepSeek's prefill layout (288 slots for
    256 experts on 32 GPUs). The lowest id wins a tie, so equal loads give equal placements. Raises ConfigError.
    """
    n_experts = load.size
    if n_slots is None:
        n_slots = (-(-n_experts // n_gpus) + 1) * n_gpus
    if n_slots < n_experts or n_slots % n_gpus or n_slots > _MAX_SLOTS:
        raise ConfigError(f"placement eplb: found slots={n_slots}, expected a multiple of {n_gpus} GPUs from {n_experts} (experts) to {_MAX_SLOTS}")
    _check_nodes(n_experts, n_gpus, n_nodes, n_groups)
    of_node = _pack(np.arange(n_groups, dtype=np.int32), load.reshape(n_groups, -1).sum(axis=1).astype(np.float64), n_nodes)
    experts = np.arange(n_experts, dtype=np.int32).reshape(n_groups, -1)[of_node].reshape(n_nodes, -1)
    nodes = (own[_pack(*_replicate(load[own], n_slots // n_nodes, as_made=n_nodes > 1), n_gpus // n_nodes)] for own in experts)
    slot_expert = np.concatenate([*nodes])
    return Placement(n_gpus, n_slots // n_gpus, slot_expert, "eplb", _note(slot_expert, n_experts, n_gpus))


def exact(
    load: Reals, n_gpus: int, slots: int | None = None, least: int = 1, plan: int | None = None, prefetch: str = "", weights: str = "direct"
) -> Placement:
    """MoonEP's plan for a micro-batch with `load` rows per expert, [n_experts]: every GPU gets equally many rows.

    Experts lie as in `contiguous`; a GPU fetches the weights of at most `slots` others (None: as many as it has experts), each for `least` rows or
    more (UltraEP: 1,024); both may leave it with less than its share. `plan`: us; None and "": the choices `balance.*`. `prefetch`, `weights` =
    "relay": see `Moved`. Raises ConfigError where GPUs do not divide the experts.
    """
    slot_expert, quota, spare = exact_slots(load.astype(np.int64), n_gpus, slots, max(1, least))
    note = f"{load.size} experts, {int((slot_expert >= 0).sum()) - load.size} replicas whose weights move, on {n_gpus} GPUs"
    plan_us = choice_int("balance.plan_us") if plan is None else plan
    moved = Moved(spare, plan_us, prefetch or choice_str("balance.prefetch"), weights == "relay")
    return Placement(n_gpus, len(slot_expert) // n_gpus, slot_expert, "exact", note, quota=quota, moved=moved)


def _check_nodes(n_experts: int, n_gpus: int, n_nodes: int, n_groups: int) -> None:
    """Raise ConfigError unless GPUs and groups share nodes evenly, and experts share groups evenly."""
    for counted, what, by, among in (
        (n_gpus, "GPUs", n_nodes, "nodes"),
        (n_groups, "groups", n_nodes, "nodes"),
        (n_experts, "experts", n_groups, "groups"),
    ):
        if by < 1 or counted % by:
            raise ConfigError(f"placement eplb: found {counted} {what} on {by} {among}, expected a multiple")


def _replicate(load: Reals, n_slots: int, as_made: bool) -> tuple[I32, F64]:
    """Expert and load of every replica. Each further replica goes to the expert with the largest load per replica.

    Replicas are in the order of experts; `as_made`: first one of each expert, then the further ones, as in the public code.
    The order decides ties of the packing.
    """
    copies, further = np.ones(load.size, dtype=np.int64), list[int]()
    heap = [(-float(value), expert) for expert, value in enumerate(load)]
    heapq.heapify(heap)
    for _ in range(n_slots - load.size):
        expert = heap[0][1]
        copies[expert] += 1
        further.append(expert)
        heapq.heapreplace(heap, (-float(load[expert]) / copies[expert], expert))
    each = np.arange(load.size, dtype=np.int32)
    replica = np.append(each, np.array(further, np.int32)) if as_made else np.repeat(each, copies)
    return replica, load[replica] / copies[replica]


def _pack(replica: I32, load: F64, n_gpus: int) -> I32:
    """The expert of every slot. In order of falling load, a replica goes to the least loaded GPU with a free slot."""
    per_gpu = replica.size // n_gpus
    held: list[list[int]] = [[] for _ in range(n_gpus)]
    heap = [(0.0, gpu) for gpu in range(n_gpus)]
    for index in np.argsort(-load, kind="stable"):
        total, gpu = heapq.heappop(heap)
        held[gpu].append(int(replica[index]))
        if len(held[gpu]) < per_gpu:
            heapq.heappush(heap, (total + float(load[index]), gpu))
    return np.array([expert for experts in held for expert in sorted(experts)], dtype=np.int32)


def _from_file(path: Path, n_experts: int, n_gpus: int) -> Placement:
    """A placement from a file: one list of expert ids per GPU.

    JSON: `[[0, 1], [2, 3]]` or `{"gpus": [[0, 1], [2, 3]]}`. TOML: `gpus = [[0, 1], [2, 3]]`. Every expert must appear. Replicas are allowed. A list
    that is shorter than the longest one leaves slots empty (-1). Raises ConfigError that names file, GPU and entry.
    """
    held = _lists_of(path)
    if len(held) != n_gpus:
        raise ConfigError(f"{path}: found {len(held)} lists of experts, expected one per GPU ({n_gpus})")
    for gpu, experts in enumerate(held):
        for column, expert in enumerate(experts):
            if not 0 <= expert < n_experts:
                raise ConfigError(f"{path}: GPU {gpu}, entry {column}: found expert {_shown(expert)}, expected 0 to {n_experts - 1}")
    missing = sorted(set(range(n_experts)).difference(*held))
    if missing:
        raise ConfigError(f"{path}: expert {missing[0]} is on no GPU ({len(missing)} of {n_experts} are missing)")
    per_gpu = max(len(experts) for experts in held)
    if per_gpu * n_gpus > _MAX_SLOTS:
        raise ConfigError(f"{path}: found {per_gpu} experts on one GPU, expected at most {_MAX_SLOTS // n_gpus}")
    slot_expert = np.full((n_gpus, per_gpu), -1, dtype=np.int32)
    for gpu, experts in enumerate(held):
        slot_expert[gpu, : len(experts)] = experts
    flat = slot_expert.reshape(-1)
    return Placement(n_gpus, per_gpu, flat, "given", _note(flat, n_experts, n_gpus))


def _lists_of(path: Path) -> list[list[int]]:
    document = _parse(path)
    if isinstance(document, dict):
        for key in document:
            if key != "gpus":
                raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, ['gpus'])}")
        document = document.get("gpus")
    if not isinstance(document, list):
        raise ConfigError(f"{path}: expected gpus = [[expert ids of GPU 0], [of GPU 1], ...]")
    for gpu, experts in enumerate(document):
        if not isinstance(experts, list):
            raise ConfigError(f"{path}: GPU {gpu}: found {type(experts).__name__}, expected a list of expert ids")
        for column, expert in enumerate(experts):
            if type(expert) is not int:
                raise ConfigError(f"{path}: GPU {gpu}, entry {column}: found {_shown(expert)}, expected an expert id")
    return document


def _parse(path: Path) -> Any:
    text = read_text(path)
    if path.suffix == ".toml":
        return parse_toml(text, str(path))
    document = json_of(text, str(path))
    check_bounded(document, str(path))
    return document


def place(name: str, n_experts: int, n_gpus: int, load: Reals) -> Placement:
    """The placement of a name: contiguous, auto, eplb:slots=N,nodes=N,groups=G, exact with the options of `exact`, or a .json / .toml file.

    All but exact may end in `:choose=RULE`. `load`: [n_experts] rows per expert, for eplb and exact only. Raises ConfigError for an unknown name.
    """
    name, chosen, rule = name.partition(":choose=")
    placed = _placed(name, n_experts, n_gpus, load)
    if not chosen:
        return placed
    check_word(rule, ("turns", *CHOOSES), f"placement {name[:60]}: found choose={_shown(rule)}")
    if placed.quota is not None:
        raise ConfigError(f"placement {name[:60]}: found choose={rule}, expected none: the plan says which replica serves a row")
    if rule != "turns" and np.bincount(placed.slot_expert[placed.slot_expert >= 0]).max() == 1:
        raise ConfigError(f"placement {name[:60]}: found choose={rule}, expected replicas; here every expert lies once")
    return replace(placed, choose=rule, note=placed.note and f"{placed.note}, {rule} chooses")


def _placed(name: str, n_experts: int, n_gpus: int, load: Reals) -> Placement:
    if name.endswith((".json", ".toml")):
        return _from_file(Path(name.removeprefix("given:")), n_experts, n_gpus)
    head, _, rest = name.partition(":")
    if head in _OPTIONS:
        given = _options(head, rest)
        if head == "exact":
            return exact(load, n_gpus, **given)
        return eplb(load, n_gpus, given.get("slots"), n_nodes=given.get("nodes", 1), n_groups=given.get("groups", 1))
    if name == "contiguous":
        return contiguous(n_experts, n_gpus)
    if name == "auto":
        return auto(n_experts, n_gpus)
    raise ConfigError(f"unknown placement {name[:60]!r}{nearest(name, _KINDS)}")


def _options(kind: str, text: str) -> ByName:
    found: ByName = {}
    for part in text.split(",") if text else ():
        key, _, value = part.partition("=")
        check_word(key, tuple(_OPTIONS[kind]), f"placement {kind}: unknown option {key!r}")
        if key in found:
            raise ConfigError(f"placement {kind}: found {key} twice, expected it once")
        if words := _OPTIONS[kind][key]:
            check_word(value, words, f"placement {kind}: found {key}={_shown(value)}")
        elif not value.isascii() or not value.isdigit() or len(value) > 9:
            raise ConfigError(f"placement {kind}: found {key}={_shown(value)}, expected a whole number")
        found[key] = value if words else int(value)
    return found


def replica_slots(expert: I32, placement: Placement, n_experts: int) -> I32:
    """The expert slot that serves each (token, expert) pair: [tokens, topk] int32, -1 = dropped.

    The replicas of an expert take turns by token number, or `choose` and `quota` of the placement say (tokens are then GPU by GPU, equally many).
    The turn of an expert is shifted by its id, so that
    neighbouring experts do not turn in step. The result is deterministic, and replicas get even loads.
    """
    table, copies = _replica_table(placement, n_experts)
    if placement.quota is not None:
        return by_quota(expert, placement.quota, table, copies, placement.n_gpus, placement.slots_per_gpu)
    if placement.choose != "turns":
        return CHOOSES[placement.choose](expert, table, copies, placement.n_gpus, placement.slots_per_gpu)
    if table.shape[1] == 1:
        only = np.append(table[:, 0], np.int32(-1))  # -1 picks the last entry
        return only[expert]
    token = np.arange(expert.shape[0], dtype=np.int32)
    slot = np.empty_like(expert)
    for column in range(expert.shape[1]):
        chosen = expert[:, column]
        turn = (token + chosen) % copies[chosen]
        slot[:, column] = np.where(chosen < 0, np.int32(-1), table[chosen, turn])
    return slot


def replica_loads(load: Reals, placement: Placement) -> F64:
    """Load of every expert slot if replicas share their expert's load evenly: [n_slots] float64, 0 = empty slot."""
    held = placement.slot_expert
    copies = np.bincount(held[held >= 0], minlength=load.size)
    per_replica = np.append(load / np.maximum(copies, 1), 0.0)  # -1, an empty slot, picks the last entry
    return per_replica[held]


def _replica_table(placement: Placement, n_experts: int) -> tuple[I32, I32]:
    """Slots of every expert in slot order, [n_experts, most replicas] padded with -1, and their number [n_experts]."""
    slots = np.flatnonzero(placement.slot_expert >= 0).astype(np.int32)
    held = placement.slot_expert[slots]
    order = np.argsort(held, kind="stable")
    copies = np.bincount(held, minlength=n_experts).astype(np.int32)
    rank = np.arange(held.size) - np.repeat(np.cumsum(copies) - copies, copies)
    table = np.full((n_experts, int(copies.max())), -1, dtype=np.int32)
    table[held[order], rank] = slots[order]
    return table, copies


def _note(slot_expert: I32, n_experts: int, n_gpus: int) -> str:
    if slot_expert.size == n_experts and bool((slot_expert >= 0).all()):
        return ""
    n_empty = int((slot_expert < 0).sum())
    empty = f", {n_empty} empty" if n_empty else ""
    return f"{n_experts} experts -> {slot_expert.size} slots on {n_gpus} GPUs{empty}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def worth_shadows(rows: Ints, cost_rows: float) -> I32:
    """The experts that FasterMoE's policy copies to every GPU, hottest first.

    `rows`: `[n_experts]` rows of each expert. `cost_rows`: the time of one copy, in rows of the hottest expert (docs/design/0016-layer-figures.md).
    The hottest expert is copied while rows of the next one plus the cost of all copies fall. The lowest id wins a tie; one expert always stays.
    """
    order = np.argsort(-rows, kind="stable")
    best = float(rows[order[0]]) if len(order) else 0.0
    for n, after in enumerate(order[1:], start=1):
        now = float(rows[after]) + n * cost_rows
        if now >= best:
            return order[: n - 1].astype(np.int32)
        best = now
    return order[:-1].astype(np.int32)


def with_shadows(routing: Routing, experts: I32) -> Routing:
    """`routing` with a further slot for each of `experts` on every GPU, which serves the choices of the GPU's own tokens.

    Slots are in the order of `experts`. The expert's first slot stays and gets no row. Raises ConfigError for a placement with replicas, parts
    or shadows: the expert then has several places already.
    """
    p = routing.placement
    held = p.slot_expert[p.slot_expert >= 0]
    if p.parts != 1 or p.shadows or len(held) != routing.n_experts:
        raise ConfigError(f"shadows: found {len(held)} places of {routing.n_experts} experts on {p.n_gpus} GPUs, expected one place for each expert")
    if not len(experts):
        return routing
    per_gpu = p.slots_per_gpu + len(experts)
    slot_expert = np.concatenate([p.slot_expert.reshape(p.n_gpus, -1), np.tile(experts, (p.n_gpus, 1))], axis=1).ravel()
    gpu, local = np.divmod(routing.slot, p.slots_per_gpu)
    place = np.full(routing.n_experts + 1, -1, np.int32)  # -1 as expert picks the last entry
    place[experts] = np.arange(len(experts))
    source = np.arange(routing.n_tokens)[:, None] // routing.tokens_per_gpu
    shadow = place[routing.expert]
    slot = np.where(shadow >= 0, source * per_gpu + p.slots_per_gpu + shadow, gpu * per_gpu + local)
    note = f"{routing.n_experts} experts, {len(experts)} of them also on every GPU for its own tokens"
    placement = Placement(p.n_gpus, per_gpu, slot_expert.astype(np.int32), p.kind, note, shadows=len(experts))
    return replace(routing, slot=np.where(routing.slot >= 0, slot, -1).astype(np.int32), placement=placement)
