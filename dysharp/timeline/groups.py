"""The groups of tracks of a GPU, in the order of the viewer."""

from __future__ import annotations

from dysharp.program.payload import sides_of
from dysharp.program.tables import Program

POOL_GROUP = "SMs"
UP_GROUP, DOWN_GROUP = "up link", "down link"
GROUPS = ("operators", POOL_GROUP, UP_GROUP, DOWN_GROUP)


def link_groups(program: Program) -> list[tuple[str, str]]:
    """(group of the links out, group of the links in) of every network; NVLink is the first.

    Links between pairs have groups of their own: "xgmi +3 out" of GPU i leads to the GPU three places on.
    """
    steps = [f" +{net.step}" if net.step else "" for net in program.nets]
    others = [(out.replace(" ", f"{step} "), into.replace(" ", f"{step} ")) for step, (out, into) in zip(steps, sides_of(program)[1:], strict=True)]
    return [(UP_GROUP, DOWN_GROUP), *others]
