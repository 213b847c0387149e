"""The measured error of a step's closed forms, by the group that a step belongs to; a test compares it with `step_time.judge_groups`."""

from dysharp.measured.training.step_time import BARS
from dysharp.specs.whole import WholeModel
from dysharp.steps.layout import Layout
from dysharp.steps.machine import Machine

MEDIAN_P90 = dict(zip(BARS, ((1.7, 7.7), (2.4, 5.7), (7.7, 12.8), (4.2, 9.7), (6.3, 22.1), (4.3, 9.7)), strict=True))
"""Percent: median over (model, GPU) and 90th percentile of rows."""


def group_of_step(model: WholeModel, layout: Layout, machine: Machine) -> str:
    """The group of measured steps that a step is most like."""
    names = list(BARS)
    if model.layer is None:
        return names[0] if layout.gpus <= machine.domain else names[1]
    if layout.pp == 1:
        return names[2]
    return names[3] if layout.ep * layout.stride("ep") <= machine.domain and machine.domain > 8 else names[4]


def error_bar(model: WholeModel, layout: Layout, machine: Machine) -> str:
    """What measurements say about a step, in a sentence."""
    if not machine.cluster.gpu:
        return "No measurement judges a paper cluster: read ratios between systems, not times."
    group = group_of_step(model, layout, machine)
    median, most = MEDIAN_P90[group]
    return f'Closed forms of whole steps miss measured steps like this ("{group}") by {median:g} % (median), {most:g} % (90 % of rows).'
