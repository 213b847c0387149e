"""`Routing`: which experts every token chose, and which expert slot serves each choice. Statistics of a Routing."""

from dataclasses import replace

import numpy as np

from dysharp.base import I32, I64, Bools, ConfigError, Ints, Reals, Texts, frozen

PREFETCHES = ("before", "beside", "hidden")
"""When weights of replicas move: before Dispatch, on the links beside it, or earlier at no cost."""


@frozen
class Moved:
    """Replicas whose weights move in each micro-batch: the last `slots` expert slots of every GPU (as they were before `in_parts`)."""

    slots: int
    plan_us: int
    """From counts to the start of Dispatch."""
    prefetch: str
    """One of `PREFETCHES`."""
    relay: bool = False
    """Replicas of an expert send its weights on, one to the next. False: the home sends all of them."""


@frozen
class Placement:
    """Expert slots of a group of GPUs. Slot `s` lies on GPU `s // slots_per_gpu`."""

    n_gpus: int
    slots_per_gpu: int
    slot_expert: I32
    """[n_gpus * slots_per_gpu] int32: the logical expert of every slot, -1 = empty slot."""
    kind: str
    """contiguous | auto | eplb | exact | given (from a file)."""
    note: str
    """Replicas and empty slots in one line ("256 experts -> 288 slots on 72 GPUs"), "" for none."""
    parts: int = 1
    """Above 1: slot `s` is part `s % parts` of an expert slot that a system splits (`in_parts`)."""
    shadows: int = 0
    """The last `shadows` expert slots of every GPU hold copies of the same experts, for the GPU's own tokens (`with_shadows`)."""
    choose: str = "turns"
    """Who chooses among the replicas of an expert: "turns" (by token number) | random | local | switch (`balance.CHOOSES`)."""
    quota: I64 | None = None
    """[n_slots] int64 rows that each slot serves, which a plan of this micro-batch gave. None: `choose` says."""
    moved: Moved | None = None

    @property
    def n_slots(self) -> int:
        """Expert slots of all GPUs, with empty slots."""
        return self.n_gpus * self.slots_per_gpu


@frozen
class Routing:
    """Expert choices of one MoE layer. Token `g * tokens_per_gpu + t` starts on GPU `g`."""

    expert: I32
    """[tokens, topk] int32 logical expert ids, distinct within a token, -1 = dropped. Columns have no order."""
    slot: I32
    """[tokens, topk] int32 expert slots that serve the choices, -1 = dropped."""
    n_gpus: int
    tokens_per_gpu: int
    n_experts: int
    placement: Placement
    description: str
    synthetic: bool
    """False: the expert ids were recorded from a model."""
    notes: Texts
    layer: int | None = None
    """The model's layer that the choices stand for. None: no layer was named."""

    @property
    def n_tokens(self) -> int:
        """Tokens of all GPUs together."""
        return int(self.expert.shape[0])

    @property
    def topk(self) -> int:
        """Columns of `expert`."""
        return int(self.expert.shape[1])


@frozen
class _Imbalance:
    """Load ratios. `copies` counts (token, expert) pairs per GPU. `tokens` counts each token once per GPU."""

    expert_max_mean: float
    expert_cv: float
    copies_max_mean: float
    tokens_max_mean: float


@frozen
class _DistinctGpus:
    """Mean distinct GPUs per token, with and without its source GPU. Uniform routing: `G p` = R + p, and R."""

    with_source: float
    without_source: float


def first_tokens(routing: Routing, tokens: int) -> Routing:
    """The first `tokens` tokens of every GPU. The placement of `routing` does not change.

    Raises ConfigError unless `tokens` is 1 to `tokens_per_gpu`.
    """
    if not 1 <= tokens <= routing.tokens_per_gpu:
        raise ConfigError(f"routing: found {tokens} tokens per GPU to take, expected 1 to {routing.tokens_per_gpu}")
    taken = (np.arange(routing.n_gpus)[:, None] * routing.tokens_per_gpu + np.arange(tokens)).ravel()
    return replace(routing, expert=routing.expert[taken], slot=routing.slot[taken], tokens_per_gpu=tokens)


def in_parts(routing: Routing, part: Ints, n_parts: int) -> Routing:
    """`routing` with every expert slot split into `n_parts` slots of the same expert on the same GPU.

    `part`: `[tokens, topk]` the part that serves each choice, 0 to `n_parts` - 1. Raises ConfigError where the slots of `routing` are parts already.
    """
    p = routing.placement
    if p.parts != 1:
        raise ConfigError(f"routing: found slots that are {p.parts} parts already, expected whole expert slots to split")
    slot = np.where(routing.slot >= 0, routing.slot * n_parts + part, -1).astype(np.int32)
    split = replace(p, slots_per_gpu=p.slots_per_gpu * n_parts, slot_expert=np.repeat(p.slot_expert, n_parts), parts=n_parts)
    return replace(routing, slot=slot, placement=split)


def rows_per_expert(routing: Routing) -> I64:
    """Useful (token, expert) rows per logical expert: [n_experts] int64."""
    return count_ids(routing.expert, routing.n_experts)


def rows_per_slot(routing: Routing) -> I64:
    """Useful (token, expert) rows per expert slot: [n_slots] int64."""
    return count_ids(routing.slot, routing.placement.n_slots)


def rows_by_source(routing: Routing) -> I64:
    """Useful (token, expert) rows from each GPU to each expert slot: [n_gpus, n_slots] int64."""
    n_slots = routing.placement.n_slots
    source = np.repeat(np.arange(routing.n_gpus), routing.tokens_per_gpu)
    rows = np.zeros(routing.n_gpus * n_slots, np.int64)
    for column in routing.slot.T:
        kept = column >= 0
        rows += np.bincount(source[kept] * n_slots + column[kept], minlength=len(rows))
    return rows.reshape(routing.n_gpus, n_slots)


def needed_gpus(routing: Routing) -> Bools:
    """[tokens, n_gpus] bool: whether the token needs the GPU. The source GPU is included."""
    return gpus_of(routing.slot, routing.placement)


def gpus_of(slot: Ints, placement: Placement) -> Bools:
    """[tokens, n_gpus] bool: whether a choice of the token, `slot` [tokens, topk], lies on the GPU."""
    needs = np.zeros((len(slot), placement.n_gpus + 1), dtype=np.bool_)
    token = np.arange(len(slot))
    for column in slot.T:  # column by column, because a [tokens, topk, gpus] array would be large
        # A dropped entry (-1) floor-divides to GPU -1, which is the spare last column.
        needs[token, column // placement.slots_per_gpu] = True
    return needs[:, : placement.n_gpus]


def imbalance(routing: Routing) -> _Imbalance:
    """Load ratios of a Routing: max/mean and coefficient of variation over experts, max/mean over GPUs."""
    experts = rows_per_expert(routing)
    copies = rows_per_slot(routing).reshape(routing.n_gpus, -1).sum(axis=1)
    tokens = needed_gpus(routing).sum(axis=0)
    return _Imbalance(max_over_mean(experts), variation(experts), max_over_mean(copies), max_over_mean(tokens))


def distinct_gpus(routing: Routing) -> _DistinctGpus:
    """Mean number of distinct GPUs per token, with and without the token's source GPU. Absent tokens do not count."""
    needs = needed_gpus(routing)
    total = int(needs.sum())
    gpu = np.arange(routing.n_gpus)
    local = int(needs.reshape(routing.n_gpus, routing.tokens_per_gpu, routing.n_gpus)[gpu, :, gpu].sum())
    present = max(1, int(needs.any(axis=1).sum()))
    return _DistinctGpus(total / present, (total - local) / present)


def count_ids(ids: Ints, n_ids: int) -> I64:
    """How often each of 0 .. n_ids - 1 occurs in an integer array: [n_ids] int64. -1 does not count."""
    counts = np.zeros(n_ids + 1, dtype=np.int64)
    for column in ids.T:  # bincount copies its argument to int64: one column at a time keeps the copy small
        counts += np.bincount(column + 1, minlength=n_ids + 1)
    return counts[1:]


def max_over_mean(load: Reals) -> float:
    """Largest load divided by the mean. 1.0 for an all-zero load."""
    mean = float(load.mean())
    return float(load.max()) / mean if mean > 0 else 1.0


def variation(load: Reals) -> float:
    """Coefficient of variation: population standard deviation divided by the mean. 0.0 for an all-zero load."""
    mean = float(load.mean())
    return float(load.std()) / mean if mean > 0 else 0.0
