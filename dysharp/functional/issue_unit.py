"""Turns instructions of the runtime API into transactions, and locates their blocks in bound memory."""

from dataclasses import dataclass

from dysharp.base.arrays import Array
from dysharp.base.errors import EmulationMismatch


@dataclass(slots=True, eq=False)
class Handle:
    """An issued instruction on GPU `gpu`. `waiting`: number of its packets that are not complete."""

    name: str
    gpu: int
    result: Array
    waiting: int = 0

    @property
    def done(self) -> bool:
        """Whether all packets of the instruction are complete."""
        return self.waiting == 0

    @property
    def value(self) -> Array:
        """`[n_elements]` of the device's dtype: the reduced vector; `[0]` for a store.

        Raises EmulationMismatch before the instruction is complete.
        """
        if self.waiting:
            raise EmulationMismatch(f"{self.name} on GPU {self.gpu}: found {self.waiting} packets under way, expected none (call run first)")
        return self.result
