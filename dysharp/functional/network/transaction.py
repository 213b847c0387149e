"""A transaction: the share of one packet in an instruction, from request to last answer."""

from typing import TypeVar

from dysharp.base import Numbers, frozen_keywords
from dysharp.isa.commands import Command, Dtype, Stage

MAX_TAGS = 1 << 20  # the tag field of a packet
PACKET_BYTES = 128  # payload of one transaction
Session = tuple[int, int, int]  # source, tag, attempt: one try of a transaction
DYNAMIC = frozenset({Command.DYST, Command.DYLD})
LISTED = DYNAMIC | {Command.EXPLICIT_ST, Command.EXPLICIT_LD}
PULLS = frozenset({Command.DYLD, Command.EXPLICIT_LD, Command.MULTIMEM_LD})


@frozen_keywords
class Transaction:
    """The fields of a transaction that source, switch and hubs share. Drivers of the network add further fields.

    | field | meaning |
    |---|---|
    | `source`, `tag` | GPU that issues the transaction, number of the transaction on that GPU |
    | `command` | command of the request |
    | `plane` | switch plane of all its packets |
    | `address` | multimem address of the first byte; explicit requests: the first target's address |
    | `further` | addresses of further targets (explicit requests) |
    | `block` | multimem address of the block, which answers to plain and explicit copies carry |
    | `dtype`, `n_bytes` | element type and size of the payload or of the requested sum |
    | `stage` | stage bit (dynamic requests) |
    | `targets` | listed experts on other GPUs (dynamic requests) |
    | `far` | other GPUs that receive a copy (explicit and plain requests) |
    | `near` | local experts on the source GPU, ascending (dynamic requests) |
    | `n_far`, `n_near` | contributions (responses or acknowledgements, by target) of other GPUs and of the source |
    | `weights` | gate weights or gradients: low address bits of a copy hold the list position of its first target |
    | `answer`, `total` | types into which a hub converts its response and the switch a complete sum; NONE = as `dtype` |
    | `due` | time in the Trace at which the packets move; 0 without a Trace |
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
    further: Numbers = ()
    block: int = 0
    stage: Stage = Stage.DISPATCH
    targets: Numbers = ()
    far: Numbers = ()
    near: Numbers = ()
    weights: bool = False
    answer: Dtype = Dtype.NONE
    total: Dtype = Dtype.NONE
    due: int = 0

    @property
    def dynamic(self) -> bool:
        """True: the request lists experts, and hubs translate its address.

        False: software at the receiver knows the rows.
        """
        return self.command in DYNAMIC

    @property
    def listed(self) -> bool:
        """True: the LSU fetches a target list, so the request takes an entry of the MultimemQ."""
        return self.n_far > 0 and self.command in LISTED

    @property
    def pull(self) -> bool:
        """True: the transaction reads and adds. False: it stores."""
        return self.command in PULLS

    @property
    def elements(self) -> int:
        """Number of elements in the payload or sum."""
        return self.n_bytes // self.dtype.item_bytes

    @property
    def n_targets(self) -> int:
        """Number of contributions of a complete transaction."""
        return self.n_far + self.n_near


T = TypeVar("T", bound=Transaction)
