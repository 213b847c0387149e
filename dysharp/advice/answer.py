"""The answer of `advise`: three lines that a person can paste."""

from collections.abc import Sequence

from dysharp.advice.prediction import Predicted
from dysharp.advice.what_if import WhatIf
from dysharp.runs.formats import KNOB, resource_words
from dysharp.systems import get_system

PARTS = {"dispatch": "Dispatch", "combine": "Combine", "other": "software", "around": "other kernels"}
"""Parts of `Predicted.parts_us` that are printed under another name."""
NEAR = 1.15
"""The answer also names predictions without an error bar that take at most this many times as long as the fastest."""
SMALL = 0.005
"""A change of the layer time below this share is printed as none."""


def answer_lines(best: Predicted, ties: Sequence[Predicted], changes: Sequence[WhatIf], unjudged: Sequence[Predicted] = ()) -> tuple[str, str, str]:
    """(what to run, what limits it, what would help). `unjudged`: predictions without an error bar."""
    whole = [entry for entry in unjudged if not entry.row.dropped_rows]
    out = ", ".join(f"{entry.system} drops {entry.row.dropped_share:.1%}".replace("%", " %") for entry in unjudged if entry.row.dropped_rows)
    less = f" Out of the ranking, because they compute fewer (token, expert) rows: {out}." if out else ""
    return _run_line(best, ties, whole) + less, _limit_line(best, changes), _help_line(best, changes)


def settings_of(entry: Predicted) -> str:
    """Formats, and SMs of communication with how they were chosen."""
    if not entry.tried:
        return entry.formats
    why = "fewest within 1 % of the fastest"
    if entry.edge:
        why += f"; the {entry.edge} that was measured"
    return f"{entry.formats} ({why})"


def percent(share: float) -> str:
    """A relative change: "-7 %", "+0.6 %", "no change" below 0.5 %."""
    if abs(share) < SMALL:
        return "no change"
    return f"{share:+.0%}".replace("%", " %") if abs(share) >= 0.015 else f"{100 * share:+.1f} %"


def _unchecked_line(best: Predicted, others: Sequence[Predicted]) -> str:
    near = [_short(entry) for entry in others if best.time_us <= entry.time_us <= NEAR * best.time_us and entry.system != best.system]
    text = f"Fastest prediction, which no measurement checks: {best.system}, {best.time_us:.0f} us per layer. Settings: {settings_of(best)}."
    return text + (f" Close to it: {', '.join(near)}." if near else "")


def _run_line(best: Predicted, ties: Sequence[Predicted], others: Sequence[Predicted]) -> str:
    bar = best.bar()
    if bar is None:
        return _unchecked_line(best, others)
    text = f"Run {best.system}: {best.time_us:.0f} us per layer, error bar {bar[0]:.0f} to {bar[1]:.0f} us. Settings: {settings_of(best)}."
    if ties:
        names = ", ".join(_short(entry) for entry in ties)
        text += f" May be as fast (error bars overlap): {names}."
    if faster := [entry for entry in others if entry.time_us < best.time_us]:
        text += f" Faster in this simulation, but without an error bar: {', '.join(_short(entry) for entry in faster)}."
    return text


def _short(entry: Predicted) -> str:
    """A system with its SMs and time: "deepep with 24 SMs 656 us"."""
    sms = f" with {entry.row.options[KNOB]} SMs" if KNOB in entry.row.options else ""
    return f"{entry.system}{sms} {entry.time_us:.0f} us"


def _limit_line(best: Predicted, changes: Sequence[WhatIf]) -> str:
    fused = best.one_kernel_us()
    shares = fused or {PARTS.get(name, name): us for name, us in best.parts_us().items()}
    known = sorted(((name, us / best.time_us) for name, us in shares.items() if us > 0), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {share:.0%}".replace("%", " %") for name, share in known)
    row = best.row
    busy = f"busiest: {resource_words(row.bound_resource)} ({row.bound_us / row.time_us:.0%})".replace("%", " %")
    free = next((entry.predicted.time_us for entry in changes if get_system(entry.predicted.system).bound), None)
    least = "" if free is None else f" Free communication would leave {free:.0f} us."
    whose = "" if best.row.window else f"; {busy}"  # the busiest resource of few tokens may be another one
    return f"Limit: {parts} of the layer{whose}.{least}"


def _help_line(best: Predicted, changes: Sequence[WhatIf]) -> str:
    parts = []
    for entry in changes:
        if entry.predicted.row.form == "real":
            parts.append(f"{entry.short} {percent(entry.difference_us / best.time_us)}")
    return f"Change of the layer time: {', '.join(parts)}." if parts else "No change was simulated."
