"""The papers' figures as TOML, the runner that fills them in, and the verdict that compares."""

from dysharp.experiments.figure import Check, Figure, Point, in_direction, list_figures, load_figure
from dysharp.experiments.runner import check_points, run_points
from dysharp.experiments.store import Store
from dysharp.experiments.variants import variant_points
from dysharp.experiments.verdict import Result, judge

__all__ = [
    "Check",
    "Figure",
    "Point",
    "Result",
    "Store",
    "check_points",
    "in_direction",
    "judge",
    "list_figures",
    "load_figure",
    "run_points",
    "variant_points",
]
