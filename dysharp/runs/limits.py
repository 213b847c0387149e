"""What limits a layer, in sentences: the first line of every screen that shows Rows."""

from dysharp.analysis import Row
from dysharp.runs.causes import cause_names
from dysharp.runs.formats import resource_words

_SATURATED = 0.8
"""Share of the time from which a resource or a cause limits alone."""


def answer_of(row: Row) -> str:
    """The layer time of one system, what limits it, and the lower bound of its workload."""
    return f"{row.system} ({row.form} form) takes {row.layer_us:.1f} us, {limits_of(row)}"


def limits_of(row: Row) -> str:
    """The busiest resource and the critical path of one Row, and the time that no system can beat."""
    names, causes = cause_names(row), sorted(row.attribution, key=lambda cause: -row.attribution[cause])
    shares = [f"{names[c]} ({row.attribution[c] / row.time_us:.0%})" for c in causes[:2] if row.attribution[c] >= 0.1 * row.time_us]
    share = row.bound_us / row.time_us
    leading = f" for the first {row.window['tokens']} tokens" if row.window else ""
    limit = "limited by"
    if share < _SATURATED:
        most = row.attribution[causes[0]] / row.time_us
        limit = f"limited by {names[causes[0]] if most >= _SATURATED else 'no single resource'}; the busiest resource is"
    return (
        f"{limit} {resource_words(row.bound_resource)}, which alone needs {row.bound_us:.1f} us{leading} "
        f"({share:.0%} of {'their' if leading else 'the'} time). Its critical path is {' and '.join(shares)}. "
        f"No system can take less than {row.workload_bound_us:.1f} us{leading or ' on this workload'}."
    )
