"""What happened: the columns every interpreter of a Program returns, and their digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Trace:
    """Times in picoseconds; -1 = did not happen.

    Order columns (engine and oracle agree on every one of them, and `digest` covers them): `ready`, `issue`, `start`, `end`,
    `done`, `cause` per op, `member` per member, `row_slot` per row, `tile_ready` per tile, `up_busy`/`down_busy` per node.
    """

    ready: I64  # [n_ops] last dependency fell
    issue: I64  # [n_ops] taken by its issuer
    start: I64  # [n_ops] train granted by the up server, or first task on a slot; JOIN: done
    end: I64  # [n_ops] train left the up server (pulls: tail of the last response), last task ended
    done: I64  # [n_ops] complete and visible at the source
    cause: I32  # [n_ops] op whose completion, delivery or notification made it ready, -1 = time zero
    member: I64  # [n_members] delivered there (push), response granted there (pull)
    row_slot: I32  # [n_rows] slot in its region
    tile_ready: I64  # [n_tiles]
    up_busy: I64  # [n_nodes] wire bytes sent, debt included
    down_busy: I64  # [n_nodes]
    n_events: int

    @property
    def time_ps(self) -> int:
        """Largest done time of any op (0 for an empty Program)."""
        return int(self.done.max(initial=0))

    def digest(self) -> str:
        """Hash of the order columns: equal digests mean equal runs."""
        h = hashlib.blake2b(digest_size=12)
        for f in fields(self):
            if f.name != "n_events":
                h.update(np.ascontiguousarray(getattr(self, f.name)).data)
        return h.hexdigest()
