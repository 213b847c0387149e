"""A window of a layer: the first tokens of each GPU stand for all of them (docs/design/0006, "Windows")."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dysharp.analysis import Row
from dysharp.api.workload import Workload
from dysharp.workload import Routing, first_tokens

SETTLED = 0.05
"""Share by which the window and half of it may differ without a warning."""


def run_window(w: Workload, run_layer: Callable[[Workload], Row]) -> Row:
    """The Row of the window, with `window` = what follows for the whole layer. `run_layer` simulates a Workload.

    A layer's time is start-up and drain plus its tokens at a steady rate. The rate is what the second half of the window adds to the time,
    so start-up and drain, which both runs have, are not in it. The same from half the window and a quarter says how far the rate is settled.
    """
    whole, size = w.request.tokens, w.request.window or 0
    quarter, half, full = (run_layer(_cut(w, n)) for n in (size // 4, size // 2, size))
    rate = (full.time_us - half.time_us) / (size - size // 2)
    early = (half.time_us - quarter.time_us) / (size // 2 - size // 4)
    window = {
        "tokens": size,
        "of_tokens": whole,
        "time_us": full.time_us + (whole - size) * rate,
        "us_per_token": rate,
        "half_window_time_us": half.time_us + (whole - size // 2) * early,
    }
    apart = window["half_window_time_us"] / window["time_us"] - 1
    text = f"window of {size} tokens: half of it says {apart:+.0%}, so its rate may not be settled; take a larger one"
    unsettled = (text,) if abs(apart) > SETTLED else ()
    wall = {name: seconds + half.wall_s[name] + quarter.wall_s[name] for name, seconds in full.wall_s.items()}
    wall["routing"], wall["total"] = w.routing_s, wall["total"] - 2 * w.routing_s
    compile_s = full.compile_s + half.compile_s + quarter.compile_s
    return dataclasses.replace(full, window=window, wall_s=wall, compile_s=compile_s, warnings=(*full.warnings, *unsettled))


def _cut(w: Workload, tokens: int) -> Workload:
    """The first tokens of each GPU, in the Request too, by which warnings judge."""
    routing: Routing = first_tokens(w.routing, tokens)
    return dataclasses.replace(w, request=dataclasses.replace(w.request, tokens=tokens), routing=routing)
