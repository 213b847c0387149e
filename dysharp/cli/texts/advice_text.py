"""`dysharp advise` on one screen: the answer, the ranking, the what-ifs, the warnings."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from dysharp.base import Texts, by_key
from dysharp.base.text import table as plain
from dysharp.planning.advice.advise import PARTS, Advice, percent
from dysharp.planning.advice.prediction import Predicted
from dysharp.planning.advice.what_if import WhatIf
from dysharp.runs import KNOB, grouped, rows_sent
from dysharp.show.output import UNKNOWN, WIDTH
from dysharp.systems import get_system

MOST_LINES = 40
MORE = "More: --details (SM counts, critical paths, load, what each change assumes), --markdown, --json"
FEWEST_WARNINGS = 3  # lines of warnings that are printed however long the rest is
_HEADER_LINES = 3  # lines of the header that the screen repeats: the workload, its formats, its routing


def _screen(done: Advice) -> list[str]:
    """At most `MOST_LINES` lines of at most `WIDTH` columns."""
    lines = [*wrapped(done.answer), "", *wrapped(_header(done))]
    if done.ranking:
        lines += ["", *_ranking(done.ranking)]
    lines += [*_unjudged(done.unjudged), *_left_out(done.not_ranked)]
    if done.what_if:
        lines += ["", *_what_ifs(done)]
    if done.no_what_if:
        lines += wrapped([_no_estimate(done.no_what_if)])
    return [*lines, *_warning_lines(done, max(FEWEST_WARNINGS, MOST_LINES - len(lines) - 1)), MORE]


def _no_estimate(changes: Mapping[str, str]) -> str:
    """One sentence on the changes that have no prediction; changes with one reason stand together. What a reason lists in brackets is left out."""
    by_reason = by_key((reason.partition(" (")[0], change) for change, reason in changes.items())
    return "No estimate of: " + "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def _header(done: Advice) -> list[str]:
    """The workload, its formats and its routing; the leading tokens where not all were simulated."""
    few = done.best.row.tokens_per_gpu
    lines = [line for line in done.header if not line.startswith(("warning: ", "note: ", "placement "))][:_HEADER_LINES]
    if done.best.row.window:
        lines.append(f"times of {done.best.tokens} tokens are extended from the first {few} tokens of each GPU")
    return lines


def wrapped(texts: Iterable[str]) -> list[str]:
    """Each text in lines of at most `WIDTH` columns; a continued line is indented."""
    return [line for text in texts for line in textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, last: bool = False) -> list[str]:
    """Lines of a table whose first `left` columns are text; `last`: the last column is text, too. A table that is too wide gets narrow gaps."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    return plain(heads, rows, left=left, text=heads[-1:] if last else (), gap=gap).split("\n")


def _sms(entry: Predicted) -> str:
    return str(entry.row.options.get(KNOB, UNKNOWN))


def _ranking(ranking: Sequence[Predicted]) -> list[str]:
    heads = ("ranking", "rows out / back", "SMs", "layer us", "error bar", *(PARTS.get(name, name).split()[0] for name in ranking[0].parts_us()))
    lines = table(heads, [_ranked(entry) for entry in ranking], left=2)
    for entry in ranking:
        if fused := entry.one_kernel_us():
            waits = f"neither for at least {fused['waits']:.0f} us" if fused["waits"] > 0 else "partly at once"
            parts = f"GEMMs {fused['GEMMs']:.0f} us, copies {fused['copies']:.0f} us, {waits}"
            lines += wrapped([f"{entry.system} is one kernel; on its busiest GPU and link: {parts}"])
    return lines


def _ranked(entry: Predicted) -> Texts:
    bar, fused = entry.bar(), entry.one_kernel_us()
    width = f"{bar[0]:.0f} to {bar[1]:.0f}" if bar else UNKNOWN
    known = entry.parts_us() if fused is None else {"GEMMs": fused["GEMMs"]}
    parts = [f"{known[name]:.0f}" if name in known else UNKNOWN for name in entry.parts_us()]
    return (entry.system, rows_sent(entry.formats), _sms(entry), f"{entry.time_us:.0f}", width, *parts)


def _unjudged(entries: Sequence[Predicted]) -> list[str]:
    """Predictions that no measurement checks, each with the reason."""
    if not entries:
        return []
    rows = [f"{one.system} {one.time_us:.0f} us{f' with {_sms(one)} SMs' if KNOB in one.row.options else ''} ({_reason(one)})" for one in entries]
    return wrapped([f"No error bar, so not ranked: {'; '.join(rows)}"])


def _reason(entry: Predicted) -> str:
    if entry.row.dropped_rows:
        return f"drops {entry.row.dropped_share:.1%} of the rows".replace("%", " %")
    for text in entry.warnings:
        if only := re.search(r"because only (.+) was measured", text):
            return f"measured on {only[1]} only"
        if "has too few measurements" in text and "no error bar" in text:
            return "too few rows on this GPU"
        if "differs from the measured nodes" in text:
            return "another network than the measured one"
        if alone := re.search(r"measurements check its (.+) alone|its (.+) were measured on .+ a whole layer on no GPU", text):
            return f"only its {alone[1] or alone[2]} were measured" + ("" if alone[1] else ", on other GPUs")
    return "not measured between NVLink domains" if any("between NVLink domains" in text for text in entry.warnings) else "never measured"


def _left_out(reasons: Mapping[str, str]) -> list[str]:
    """Systems that were not run, by reason without its source."""
    names = by_key((why.split(" (")[0].removeprefix("has "), name) for name, why in reasons.items())
    parts = [f"{', '.join(who)} ({why})" for why, who in names.items()]
    return wrapped([f"Not run: {'; '.join(parts)}"]) if parts else []


def _what_ifs(done: Advice) -> list[str]:
    heads = (f"what if: change of {done.best.system}", "layer us", "difference us", "", "note")
    return table(heads, [_changed(entry) for entry in done.what_if], last=True)


def _changed(entry: WhatIf) -> Texts:
    change = percent(entry.difference_us / entry.best_us)
    difference = "0" if abs(entry.difference_us) < 0.5 else f"{entry.difference_us:+.0f}"
    return (entry.change, f"{entry.predicted.time_us:.0f}", difference, change, _note(entry))


def _note(entry: WhatIf) -> str:
    system = get_system(entry.predicted.system)
    if entry.predicted.row.form == "real":
        return entry.note
    if system.bound:
        return "a bound, not a system"
    return "no software cost is charged" if system.today else "not on the market; no software cost"


def _warning_lines(done: Advice, room: int) -> list[str]:
    """Warnings of the header and of the ranking, as many lines as fit `room`."""
    texts = [line.removeprefix("warning: ") for line in done.header if line.startswith("warning: ")]
    texts += grouped({entry.system: entry.warnings for entry in done.ranking or done.unjudged[:1]}, texts)
    lines: list[str] = []
    for i, text in enumerate(texts):
        own = wrapped([f"warning: {text}"])
        if len(lines) + len(own) > room - (i < len(texts) - 1):
            return [*lines, f"{len(texts) - i} more warnings: --details"]
        lines += own
    return lines
