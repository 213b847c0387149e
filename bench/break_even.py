"""From how many tokens on a Dispatch of two hops is faster than a message per expert, between NVLink domains."""

from __future__ import annotations

from dataclasses import dataclass

from dysharp.measured.ep_kernels import EpCase, Options, RoutingOf, marks_us, uniform
from dysharp.measured.internode import group_limited, machine
from dysharp.specs.fitted import fitted_values

HIDDEN, EXPERTS, TOPK = 7168, 256, 8  # DeepSeek-V3
N_SM = 24
FIRST, LAST, STEPS = 64, 384, 6
"""Tokens per GPU between which the times must cross, and halvings of that range."""


def break_even(gpus: int, *, limited: bool = True, gpu: str = "h100-sxm") -> float:
    """Tokens per GPU at which both Dispatches (FP8) take equally long; the notify with a cached handle counts.

    `limited`: a token needs four nodes at most. Raises ValueError where the times do not cross between `FIRST` and `LAST`.
    """
    routing_of = group_limited if limited else uniform
    low, high = FIRST, LAST
    below, above = _behind(gpu, gpus, low, routing_of), _behind(gpu, gpus, high, routing_of)
    if not above < 0 <= below:
        raise ValueError(f"{gpus} GPUs: found two hops {below:+.1f} us at {low} tokens, {above:+.1f} us at {high}, expected a crossing")
    for _ in range(STEPS):
        if high - low <= 16:
            break
        middle = (low + high) // 2
        found = _behind(gpu, gpus, middle, routing_of)
        low, below, high, above = (middle, found, high, above) if found >= 0 else (low, below, middle, found)
    return low + (high - low) * below / (below - above)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call(EpCase):
    """A Dispatch in FP8 with the further options `more`."""

    more: Options = ()

    def options(self) -> Options:
        return ("dispatch", "fp8"), *self.more


def _behind(gpu: str, gpus: int, tokens: int, routing_of: RoutingOf) -> float:
    """How much later than a message per expert two hops end, in us."""

    def received(system: str, more: Options) -> float:
        case = _Call(gpu=gpu, gpus=gpus, hidden=HIDDEN, experts=EXPERTS, topk=TOPK, tokens=tokens, verb="dispatch", more=more)
        return marks_us(system, case, fitted_values(), ("received",), (1, LAST), routing_of, machine)[0]

    return received("deepep", (("n_sm", N_SM),)) - received("deepep-ll", ())
