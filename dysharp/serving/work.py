"""What one step of one attention group does (`Batch`), what a kernel of it costs (`Op`), and the parts of a replica (`Replica`)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from dysharp.serving.layout import ServeLayout
from dysharp.serving.precisions import Format, Formats, compute_dtype
from dysharp.serving.rates import NCCL_AND_OWN, Rates, Reducers
from dysharp.specs.whole import WholeModel

Loads = tuple[float, ...]
ELEMENT = 2.0
"""Bytes of an activation (BF16)."""


class Op(NamedTuple):
    """Device time of one part of a step, in microseconds, and the kernels that it launches."""

    name: str
    us: float
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one step of one attention group (the `tp` GPUs that share requests). Numbers may be means.

    `decodes` requests with `queries` tokens each look at `context` cached tokens. `prompts` tokens of prompts look at `seen` tokens on average,
    of which `past` were cached by earlier steps. `mean`, `usual`: tokens and `context` of a group on average over the replica, where this group has
    more than the others.
    """

    decodes: float = 0.0
    context: float = 0.0
    queries: int = 1
    prompts: float = 0.0
    seen: float = 0.0
    past: float = 0.0
    mean: float | None = None
    usual: float | None = None

    @property
    def tokens(self) -> float:
        """Tokens of the step."""
        return self.decodes * self.queries + self.prompts


def prompt_batch(tokens: float, length: float, past: float = 0.0) -> Batch:
    """A step of prompts of `length` tokens each, `tokens` in total, of which `past` tokens each are cached already."""
    return Batch(prompts=tokens, seen=past + length / 2, past=past)


@dataclass(frozen=True, slots=True)
class SubLayerCurve:
    """Microseconds of a tensor-parallel system's sub-layers beside GEMMs and norms, at numbers of tokens: behind attention, behind the FFN."""

    tokens: tuple[int, ...]
    attention: tuple[float, ...]
    ffn: tuple[float, ...]

    def us(self, name: str, tokens: float) -> float | None:
        """The time in place of the all-reduce `name`; None for others and for fewer tokens. Beyond the last size it grows with the tokens."""
        curve = {"attention all-reduce": self.attention, "FFN all-reduce": self.ffn}.get(name)
        if curve is None or tokens < self.tokens[0]:
            return None
        return max(1.0, tokens / self.tokens[-1]) * float(np.interp(tokens, self.tokens, curve))


@dataclass(frozen=True, slots=True)
class Replica:
    """A model with its formats, spread over GPUs of a machine."""

    model: WholeModel
    formats: Formats
    layout: ServeLayout
    rates: Rates
    ep_system: str = ""
    """EP kernels of a layout with dispatch (`exchange.EP_SYSTEMS`); "": those that fit the machine."""
    tensor: Callable[[int], SubLayerCurve] | None = None
    """Curves of a system of sub-layers by `tp`; None: the engine's all-reduces."""
    reducers: Reducers = NCCL_AND_OWN
    loads: Loads = ()
    """Part of the rows that each expert gets (`balance.loads_of`); (): experts of log-normal popularity, balanced where recipes balance them."""
    even: bool = False
    """Every expert GPU has as many rows as the others."""

    @property
    def stage_part(self) -> float:
        """Part of the layers that the largest stage has."""
        return ceil(self.model.n_layers / self.layout.pp) / self.model.n_layers

    def linear(self, name: str, part: str, m: float, n: float, k: float) -> Op:
        """A linear layer: quantise the inputs unless the products are BF16, then the GEMM."""
        form: Format = self.formats.of(part)
        dtype = compute_dtype(self.rates.gpu, form.compute)
        cast = self.rates.memory(3 * m * k) if dtype != "bf16" else 0.0
        return Op(name, cast + self.rates.gemm(m, n, k, dtype, form.weight_bytes), 1 + (cast > 0))

    def small(self, name: str, tokens: float, width: float, kernels: int = 1) -> Op:
        """`kernels` kernels that read and write rows of `width` activations."""
        return Op(name, kernels * self.rates.memory(2 * ELEMENT * tokens * width), kernels)

    def all_reduce(self, name: str, tokens: float) -> Op:
        """The sum of rows over the GPUs of an attention group. With the EP system `exchange.FREE` nothing takes time."""
        n = 1 if self.ep_system == "free" else self.layout.tp
        if self.tensor and n > 1 and (us := self.tensor(n).us(name, tokens)) is not None:
            return Op(name, us)
        return Op(name, self.rates.all_reduce(n, ELEMENT * tokens * self.model.hidden, self.reducers), int(n > 1))


@dataclass(frozen=True, slots=True)
class Load:
    """What users do: `users` of one replica, prompts and answers of mean length in tokens."""

    users: float
    prompt: float
    answer: float
    accepted: float = 1.0
    """Tokens of a step and request: 1 without drafts."""
    drafts: int = 0

    @property
    def steps(self) -> float:
        """Decode steps of a request after its first token."""
        return max(1.0, self.answer - 1) / self.accepted
