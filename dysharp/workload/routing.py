"""`Routing`: which experts every token chose, which physical slot serves each choice, and statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dysharp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    """Physical expert slots of a group of GPUs; slot `s` lies on GPU `s // slots_per_gpu`.

    `slot_expert`: [n_gpus * slots_per_gpu] int32, the logical expert each slot holds, -1 = empty slot.
    `kind`: contiguous | auto | eplb | given. `note`: one line for a table header when replicas or
    empty slots were used ("256 experts -> 288 slots on 72 GPUs"), else "".
    """

    n_gpus: int
    slots_per_gpu: int
    slot_expert: NDArray[np.int32]
    kind: str
    note: str

    @property
    def n_slots(self) -> int:
        """All physical slots, empty ones included."""
        return self.n_gpus * self.slots_per_gpu


@dataclass(frozen=True, slots=True)
class Routing:
    """Expert choices of one MoE layer; token `g * tokens_per_gpu + t` belongs to GPU `g`.

    `expert`: [tokens, topk] int32 logical expert ids, distinct within a token, -1 = dropped; the order of
    the columns carries no meaning. `slot`: [tokens, topk] int32 physical slots, -1 = dropped.
    `synthetic` is False only when the ids themselves were recorded from a model. `layer`: the model's layer they stand for, None where
    no layer was named.
    """

    expert: NDArray[np.int32]
    slot: NDArray[np.int32]
    n_gpus: int
    tokens_per_gpu: int
    n_experts: int
    placement: Placement
    description: str
    synthetic: bool
    notes: tuple[str, ...]
    layer: int | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens of all GPUs together."""
        return int(self.expert.shape[0])

    @property
    def topk(self) -> int:
        """Columns of `expert`."""
        return int(self.expert.shape[1])


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Load ratios. `copies` counts (token, expert) pairs per GPU, `tokens` every token once per GPU."""

    expert_max_mean: float
    expert_cv: float
    copies_max_mean: float
    tokens_max_mean: float


@dataclass(frozen=True, slots=True)
class DistinctGpus:
    """Mean distinct GPUs per token: all of them (`G p` = R + p for uniform) and without the source (R)."""

    with_source: float
    without_source: float


def first_tokens(routing: Routing, tokens: int) -> Routing:
    """The first `tokens` tokens of every GPU, experts where the whole Routing has put them. ConfigError unless there are so many."""
    if not 1 <= tokens <= routing.tokens_per_gpu:
        raise ConfigError(f"routing: found {tokens} tokens per GPU to take, expected 1 to {routing.tokens_per_gpu}")
    taken = (np.arange(routing.n_gpus)[:, None] * routing.tokens_per_gpu + np.arange(tokens)).ravel()
    return replace(routing, expert=routing.expert[taken], slot=routing.slot[taken], tokens_per_gpu=tokens)


def rows_per_expert(routing: Routing) -> NDArray[np.int64]:
    """Useful (token, expert) rows per logical expert: [n_experts] int64."""
    return count_ids(routing.expert, routing.n_experts)


def rows_per_slot(routing: Routing) -> NDArray[np.int64]:
    """Useful (token, expert) rows per physical slot: [n_slots] int64."""
    return count_ids(routing.slot, routing.placement.n_slots)


def needed_gpus(routing: Routing) -> NDArray[np.bool_]:
    """[tokens, n_gpus] bool: does the token need the GPU at least once (its own GPU included)."""
    needs = np.zeros((routing.n_tokens, routing.n_gpus + 1), dtype=np.bool_)
    token = np.arange(routing.n_tokens)
    for column in routing.slot.T:  # column by column: no [tokens, topk, gpus] array
        # A dropped entry (-1) floor-divides to GPU -1, which is the spare last column.
        needs[token, column // routing.placement.slots_per_gpu] = True
    return needs[:, : routing.n_gpus]


def imbalance(routing: Routing) -> Imbalance:
    """Load ratios of a Routing: max/mean and coefficient of variation over experts, max/mean over GPUs."""
    experts = rows_per_expert(routing)
    copies = rows_per_slot(routing).reshape(routing.n_gpus, -1).sum(axis=1)
    tokens = needed_gpus(routing).sum(axis=0)
    return Imbalance(max_over_mean(experts), variation(experts), max_over_mean(copies), max_over_mean(tokens))


def distinct_gpus(routing: Routing) -> DistinctGpus:
    """Mean number of distinct GPUs per token, counted, with and without the token's own GPU."""
    needs = needed_gpus(routing)
    total = int(needs.sum())
    gpu = np.arange(routing.n_gpus)
    local = int(needs.reshape(routing.n_gpus, routing.tokens_per_gpu, routing.n_gpus)[gpu, :, gpu].sum())
    return DistinctGpus(total / routing.n_tokens, (total - local) / routing.n_tokens)


def count_ids(ids: NDArray[np.integer], n_ids: int) -> NDArray[np.int64]:
    """How often each of 0..n_ids-1 occurs in an integer array; -1 is not counted. [n_ids] int64."""
    counts = np.zeros(n_ids + 1, dtype=np.int64)
    for column in ids.T:  # bincount makes an int64 copy of what it gets: keep that to one column
        counts += np.bincount(column + 1, minlength=n_ids + 1)
    return counts[1:]


def max_over_mean(load: NDArray[np.integer] | NDArray[np.floating]) -> float:
    """Largest over mean; 1.0 for an all-zero load."""
    mean = float(load.mean())
    return float(load.max()) / mean if mean > 0 else 1.0


def variation(load: NDArray[np.integer] | NDArray[np.floating]) -> float:
    """Coefficient of variation (population standard deviation over mean); 0.0 for an all-zero load."""
    mean = float(load.mean())
    return float(load.std()) / mean if mean > 0 else 0.0
