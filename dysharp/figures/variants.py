"""Points at other values of free choices: the points of a figure's variants, and of the tornado."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dysharp.figures.figure import CALCULATED, Figure, Variant
from dysharp.runs.point import Point
from dysharp.specs import Scalar


def with_choices(point: Point, choices: Mapping[str, Scalar]) -> Point:
    """The point with `choices`. A choice that is an option of the point's system becomes that option.

    A choice that is an option of other systems only leaves the point as it is, so the point is not run again.
    """
    from dysharp.runs.options import option_choices
    from dysharp.systems import all_systems, get_system

    if point.system in CALCULATED:
        return point
    own = {c.name: field for field, c in option_choices(get_system(point.system)).items() if c is not None}
    everywhere = {c.name for s in all_systems().values() for c in option_choices(s).values() if c is not None}
    options = {own[name]: value for name, value in choices.items() if name in own}
    rest = {name: value for name, value in choices.items() if name not in everywhere}
    return replace(point, options=_pairs({**dict(point.options), **options}), choices=_pairs({**dict(point.choices), **rest}))


def _pairs(values: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    return tuple(sorted(values.items()))


def variant_point(point: Point, variant: Variant) -> Point:
    """The point that takes the place of `point` in `variant`: `point` itself if the variant does not touch it."""
    if point.system not in (variant.systems or (point.system,)) or point.fidelity != (variant.fidelity or point.fidelity):
        return point
    return with_choices(point, dict(variant.choices))


def variant_points(figure: Figure, points: Iterable[Point]) -> list[Point]:
    """What the variants of `figure` run in place of `points`: only systems of checks that are shown for variants."""
    systems = {name for check in figure.checks if check.variants for name in (check.system, check.over)}
    points = [p for p in points if p.system in systems]
    return list(dict.fromkeys(variant_point(p, variant) for variant in figure.variants for p in points))
