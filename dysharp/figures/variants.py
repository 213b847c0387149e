"""Points at other values of free choices: the points of a figure's variants."""

from collections.abc import Iterable

from dysharp.figures.figure import Figure, Variant
from dysharp.figures.origin import origin_of
from dysharp.runs.point import Point


def variant_point(point: Point, variant: Variant) -> Point:
    """The point that takes the place of `point` in `variant`: `point` itself if the variant does not touch it."""
    if point.system not in (variant.systems or (point.system,)) or point.fidelity != (variant.fidelity or point.fidelity):
        return point
    return origin_of(point.system).with_choices(point, dict(variant.choices))


def variant_points(figure: Figure, points: Iterable[Point]) -> list[Point]:
    """The points of all variants of `figure`. Systems that no check with `variants` names are left out."""
    systems = {name for check in figure.checks if check.variants for name in (check.system, check.over)}
    points = [p for p in points if p.system in systems]
    return list(dict.fromkeys(variant_point(p, variant) for variant in figure.variants for p in points))
