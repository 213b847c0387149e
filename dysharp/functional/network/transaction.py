"""A transaction: one packet's worth of an instruction, from its request to its last answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from dysharp.isa.commands import Command, Dtype, Stage

MAX_TAGS = 1 << 20  # the tag field of a packet
PACKET_BYTES = 128  # payload of one transaction
Session = tuple[int, int, int]  # source, tag, attempt: one try of a transaction
DYNAMIC = frozenset({Command.DYST, Command.DYLD})
LISTED = DYNAMIC | {Command.EXPLICIT_ST, Command.EXPLICIT_LD}
PULLS = frozenset({Command.DYLD, Command.EXPLICIT_LD, Command.MULTIMEM_LD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What source, switch and hubs know of a transaction. Drivers of the network add fields of their own.

    | field | meaning |
    |---|---|
    | `source`, `tag` | the GPU that issued it, and its name there |
    | `command` | what its request is |
    | `plane` | the switch plane that all its packets cross |
    | `address` | multimem address of its first byte; explicit requests: the first target's address |
    | `further` | addresses of further targets (explicit requests) |
    | `block` | multimem address of its block, which answers to plain and explicit copies carry |
    | `dtype`, `n_bytes` | elements and size of its payload, or of the sum that it asks for |
    | `stage` | stage bit (dynamic requests) |
    | `targets` | listed experts on other GPUs (dynamic requests) |
    | `far` | other GPUs that get a copy (explicit and plain requests) |
    | `near` | local experts on the source GPU, ascending (dynamic requests) |
    | `n_far`, `n_near` | contributions (responses or acknowledgements, by target) of other GPUs and of the source |
    | `weights` | gate weights or gradients: a dynamic copy's low address bits say where its GPU's begin in the list |
    | `due` | time of a Trace at which its packets move; 0 without a Trace |
    """

    source: int
    tag: int
    command: Command
    plane: int
    address: int
    dtype: Dtype
    n_bytes: int
    n_far: int
    n_near: int
    further: tuple[int, ...] = ()
    block: int = 0
    stage: Stage = Stage.DISPATCH
    targets: tuple[int, ...] = ()
    far: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    weights: bool = False
    due: int = 0

    @property
    def dynamic(self) -> bool:
        """It lists experts and hubs translate its address; else software at the receiver knows the rows."""
        return self.command in DYNAMIC

    @property
    def listed(self) -> bool:
        """Its LSU fetches a target list, so it takes an entry of the MultimemQ."""
        return self.n_far > 0 and self.command in LISTED

    @property
    def pull(self) -> bool:
        """It reads and adds; else it stores."""
        return self.command in PULLS

    @property
    def elements(self) -> int:
        """Elements of its payload or sum."""
        return self.n_bytes // self.dtype.item_bytes

    @property
    def n_targets(self) -> int:
        """Contributions that complete it."""
        return self.n_far + self.n_near


T = TypeVar("T", bound=Transaction)
