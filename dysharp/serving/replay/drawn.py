"""Requests that are drawn: Poisson or bursts, a closed loop of users, conversations with pauses and common prefixes."""

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from dysharp.base.errors import ConfigError
from dysharp.serving.replay.request import Request

KEYS = ("rate", "users", "n", "burst", "isl", "osl", "spread", "ratio", "turns", "pause", "shared", "seed")
"""What a text may say.

rate     sessions a second, at random (Poisson)
users    users who send one session after the other
n        sessions (1000)
burst    coefficient of variation of the gaps between arrivals (gamma; 1: Poisson)
isl      mean tokens that a user sends in a turn
osl      mean tokens of an output
spread   sigma of log-normal lengths (0: equal)
ratio    shortest over longest length, uniform
turns    requests of a session; each has all tokens before it in its prompt
pause    mean seconds from an output to the next turn
shared   tokens at the head of every prompt that all sessions have in common
seed     of all draws (0)
"""
BLOCK = 16
"""Tokens of a block of a drawn conversation: vLLM's block_size."""
N = 1000
OWN = 1 << 32
"""Names of a session's own blocks begin at its number times this."""


def drawn(asked: dict[str, float], isl: float, osl: float) -> tuple[tuple[Request, ...], str, int, int]:
    """(requests, name, tokens of a block, users). Raises `ConfigError`."""
    get, users, rate = asked.get, int(asked.get("users", 0)), asked.get("rate", 0.0)
    if bool(users) == bool(rate):
        raise ConfigError("requests: found both or none of rate and users, expected rate=R (requests a second) or users=N")
    unread = {"burst": (not rate, 1), "pause": (get("turns", 1) <= 1, 0), "ratio": (bool(get("spread")) or get("ratio", 1.0) > 1, 1)}
    if wrong := next((key for key, (unused, nothing) in unread.items() if unused and get(key, nothing) != nothing), None):
        expected = {"burst": "with rate", "pause": "with turns above 1", "ratio": "at most 1, without spread"}[wrong]
        raise ConfigError(f"requests: found {wrong}={asked[wrong]:g}, expected it {expected}")
    count, turns, draw = max(1, int(get("n", N))), max(1, int(get("turns", 1))), np.random.default_rng(int(get("seed", 0)))
    times = _gaps(draw, count, get("burst", 1.0)).cumsum() / rate if rate else np.zeros(count)
    lengths = [_lengths(draw, mean, count * turns, asked) for mean in (get("isl", isl), get("osl", osl))]
    pauses, shared = draw.exponential(get("pause", 0.0), count * turns), int(get("shared", 0))
    blocks = BLOCK if shared or turns > 1 else 0
    rows = tuple(_sessions(times.tolist(), turns, shared, lengths[0].tolist(), lengths[1].tolist(), pauses.tolist()))
    return rows, ", ".join(f"{key}={value:g}" for key, value in asked.items()), blocks, users


def _gaps(draw: Any, count: int, variation: float) -> Any:
    """Gaps of mean 1."""
    shape = 1 / max(variation, 1e-3) ** 2
    return draw.gamma(shape, 1 / shape, count)


def _lengths(draw: Any, mean: float, count: int, asked: dict[str, float]) -> Any:
    """Whole numbers around a mean."""
    sigma, ratio = asked.get("spread", 0.0), asked.get("ratio", 1.0)
    parts = draw.lognormal(-(sigma**2) / 2, sigma, count) if sigma else 2 / (1 + ratio) * draw.uniform(ratio, 1.0, count)
    return np.maximum(1, np.round(mean * parts)).astype(int)


def _sessions(times: list[float], turns: int, shared: int, new: list[int], out: list[int], pauses: list[float]) -> Iterator[Request]:
    for session, at in enumerate(times):
        history, own = shared, tuple[Hashable, ...]()
        if shared or turns > 1:
            most = shared + sum(new[session * turns : (session + 1) * turns]) + sum(out[session * turns : (session + 1) * turns])
            own = tuple(i if i < shared // BLOCK else (session + 1) * OWN + i for i in range(most // BLOCK))
        for turn in range(turns):
            i = session * turns + turn
            prompt = history + new[i]
            history = prompt + out[i]
            yield Request(at, prompt, out[i], own[: history // BLOCK], i - 1 if turn else -1, pauses[i] if turn else 0.0)
