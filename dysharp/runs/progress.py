"""How far a long call is."""

from collections.abc import Callable

from dysharp.base import Texts, frozen


@frozen
class Step:
    """System `index` of `count` (from 1) is at `stage`, `done` of `total` ops (0 = unknown).

    | stage | meaning |
    |---|---|
    | routing, plan, engine, analysis | the parts of a run, in this order |
    | header | the routing is drawn; `header` has the lines that say what the numbers rest on |
    | search | settings of systems are tried (`compare(tuned=True)`) |
    | compiling | kernels are compiled, because the cache does not have them; `done` of them are ready |
    """

    system: str
    index: int
    count: int
    stage: str
    done: int = 0
    total: int = 0
    header: Texts = ()

    @property
    def share(self) -> float:
        """The part of the whole call that is done, 0 to 1. All systems count alike; 0 where the share is not known."""
        return (self.index - 1 + (self.done / self.total if self.total else 0)) / self.count


Progress = Callable[[Step], None]


def telling(progress: Progress | None, system: str, index: int = 1, count: int = 1) -> Callable[..., None]:
    """`tell(stage, done, total)` of one run, number `index` of `count`; nobody listens where `progress` is None."""
    return lambda stage, *numbers, **header: progress(Step(system, index, count, stage, *numbers, **header)) if progress else None
