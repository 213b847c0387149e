"""The papers' figures as TOML, the runner that fills them in, and the verdict that compares."""

from dysharp.figures.check import Check
from dysharp.figures.figure import Figure, in_direction, list_figures, load_figure
from dysharp.figures.runner import check_points, run_points
from dysharp.figures.verdict import Result, judge, variant_points
from dysharp.runs import Point, Store
