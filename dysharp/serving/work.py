"""The parts of a replica (`Replica`), what its kernels cost, and what users send (`Scenario`)."""

from collections.abc import Callable
from math import ceil

import numpy as np

from dysharp.base import Numbers, frozen, older_name
from dysharp.costs import NCCL_AND_OWN, Machine, OpTime, Reducers, cast_us, product
from dysharp.model import Formats, Weight
from dysharp.serving.layout import ServeLayout
from dysharp.specs import WholeModel
from dysharp.specs.fitted import KERNELS

Loads = tuple[float, ...]
ELEMENT = 2.0
"""Bytes of an activation (BF16)."""


@frozen
class SubLayerCurve:
    """Microseconds of a tensor-parallel system's sub-layers beside GEMMs and norms, at numbers of tokens: behind attention, behind the FFN."""

    tokens: Numbers
    attention: tuple[float, ...]
    ffn: tuple[float, ...]

    def us(self, name: str, tokens: float) -> float | None:
        """The time in place of the all-reduce `name`; None for others and for fewer tokens. Beyond the last size it grows with the tokens."""
        curve = {"attention all-reduce": self.attention, "FFN all-reduce": self.ffn}.get(name)
        if curve is None or tokens < self.tokens[0]:
            return None
        return max(1.0, tokens / self.tokens[-1]) * float(np.interp(tokens, self.tokens, curve))


@frozen
class Replica:
    """A model with its formats, spread over GPUs of a machine."""

    model: WholeModel
    formats: Formats
    layout: ServeLayout
    machine: Machine
    ep_system: str = ""
    """EP kernels of a layout with dispatch (`exchange.EP_SYSTEMS`); "": those that fit the machine."""
    tensor: Callable[[int], SubLayerCurve] | None = None
    """Curves of a system of sub-layers by `tp`; None: the engine's all-reduces."""
    reducers: Reducers = NCCL_AND_OWN
    loads: Loads = ()
    """Part of the rows that each expert gets (`balance.loads_of`); (): experts of log-normal popularity, balanced where recipes balance them."""
    mtp: bool = False
    """It drafts, so it holds the model's MTP layers and caches for them."""
    even: bool = False
    """Every expert GPU has as many rows as the others."""
    ep_by_flag: bool = False
    """A server of prompts and decoding whose engine's flag names DeepEP's kernels: the normal ones, as no flag takes both."""
    ep_kernels: int = 0
    fused_experts: bool = False
    early: bool = False
    fused_sums: bool = False
    casts_absorbed: bool = False
    """See `Engine`."""

    @property
    def stage_part(self) -> float:
        """Part of the layers that the largest stage has."""
        return ceil(self.model.n_layers / self.layout.pp) / self.model.n_layers

    @property
    def own(self) -> str:
        """Constant: time of the kernels of this model in its format over that of their forms, where rows of a machine say it."""
        return f"{KERNELS}{self.model.name} {self.formats.experts if self.model.layer else self.formats.dense}"

    @property
    def over(self) -> float:
        """The value of `own`."""
        return self.machine.constants.get(self.own, 1.0)

    @property
    def gap(self) -> float:
        """Time between two kernels of a graph."""
        return 0.0 if self.early else self.machine.constants["serving.gap_us"]

    def linear(self, op: Weight, tokens: float) -> OpTime:
        """A linear layer: quantise the inputs unless the products are BF16, then the GEMM. What joins an MTP layer is BF16."""
        formats = Formats() if op.part == "MTP" else self.formats
        cast = cast_us(self.machine, op, tokens, formats)
        return OpTime(op.name, cast + product(self.machine, op, tokens, formats), 1 + (cast > 0))

    def small(self, name: str, tokens: float, width: float, kernels: int = 1) -> OpTime:
        """`kernels` kernels that read and write rows of `width` activations."""
        return OpTime(name, self.machine.memory(kernels * 2 * ELEMENT * tokens * width, kernels), kernels)

    def all_reduce(self, name: str, tokens: float) -> OpTime:
        """The sum of rows over the GPUs of an attention group. With the EP system `exchange.FREE` nothing takes time."""
        n = 1 if self.ep_system == "free" else self.layout.tp
        if self.tensor and n > 1 and (us := self.tensor(n).us(name, tokens)) is not None:
            return OpTime(name, us)
        return OpTime(name, self.machine.all_reduce(n, ELEMENT * tokens * self.model.hidden, self.reducers), int(n > 1))


@frozen
class Scenario:
    """What users send to one replica: requests at once (`concurrency`), mean input and output sequence length in tokens (`isl`, `osl`)."""

    concurrency: float
    isl: float
    osl: float
    accepted: float = 1.0
    """Tokens of a step and request: 1 without speculative decoding."""
    draft_tokens: int = 0
    spread: float = 0.0
    """Variance of lengths over the square of their mean."""
    users, prompt, answer, drafts = map(older_name, ("concurrency", "isl", "osl", "draft_tokens"))

    @property
    def steps(self) -> float:
        """Decode steps of a request after its first token."""
        return max(1.0, self.osl - 1) / self.accepted
