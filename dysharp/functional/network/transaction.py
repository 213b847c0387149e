"""A transaction: one packet's worth of an instruction, from its request to its last answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

MAX_TAGS = 1 << 20  # the tag field of a packet
PACKET_BYTES = 128  # payload of one transaction
Session = tuple[int, int, int]  # source, tag, attempt: one try of a transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What source, switch and hubs know of a transaction. Drivers of the network add fields of their own.

    | field | meaning |
    |---|---|
    | `source`, `tag` | the GPU that issued it, and its name there |
    | `plane` | the switch plane that all its packets cross |
    | `address` | multimem address of its first byte |
    | `block` | multimem address of its block, which answers to plain and explicit copies carry |
    | `pull` | it reads and adds; else it stores |
    | `dynamic` | it lists experts, and hubs translate `address`; else software at the receiver knows the rows |
    | `far` | GPUs other than the source that get a copy (explicit and plain requests; dynamic ones list experts) |
    | `near` | local experts on the source GPU, ascending (dynamic requests) |
    | `n_far`, `n_near` | contributions (responses or acknowledgements, by target) of other GPUs and of the source |
    | `elements` | elements of a pull's sum; 0 for stores |
    | `listed` | its LSU fetches a target list, so it takes an entry of the MultimemQ |
    | `indexed` | a GPU's copy names in the low address bits where its targets begin in the list (gate weights) |
    | `due` | time of a Trace at which its packets move; 0 without a Trace |
    """

    source: int
    tag: int
    plane: int
    address: int
    pull: bool
    dynamic: bool
    n_far: int
    n_near: int
    block: int = 0
    far: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    elements: int = 0
    listed: bool = False
    indexed: bool = False
    due: int = 0

    @property
    def n_targets(self) -> int:
        """Contributions that complete the transaction."""
        return self.n_far + self.n_near


T = TypeVar("T", bound=Transaction)
