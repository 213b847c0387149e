"""`Trace`: the record of a run, with its digest. Every interpreter of Programs returns one."""

import hashlib
from dataclasses import fields

import numpy as np

from dysharp.base import I32, I64, frozen


@frozen
class Trace:
    """The record of a run. Times in picoseconds, -1 = did not happen.

    All columns but `n_events` are order columns: engine and oracle agree on them, and `digest` covers them.
    """

    ready: I64  # [n_ops] last dependency fell
    issue: I64  # [n_ops] its issuer took it
    start: I64  # [n_ops] up server granted the train, or first task took a slot; JOIN: done
    end: I64  # [n_ops] train left the up server (pulls: end of the last response), or last task ended
    done: I64  # [n_ops] complete and visible at the source
    cause: I32  # [n_ops] op whose completion, delivery or notification made it ready, -1 = time zero
    member: I64  # [n_members] copy visible (push), response granted (pull)
    row_slot: I32  # [n_rows] slot in the row's region
    tile_ready: I64  # [n_tiles]
    up_busy: I64  # [n_ports] wire bytes that the up server sent, debt included
    down_busy: I64  # [n_ports] wire bytes that the down server sent, debt included
    n_events: int  # events that the interpreter applied

    @property
    def time_ps(self) -> int:
        """The largest `done` of all ops. 0 for an empty Program."""
        return int(self.done.max(initial=0))

    def digest(self) -> str:
        """A hash of the order columns. Equal digests mean equal runs."""
        h = hashlib.blake2b(digest_size=12)
        for f in fields(self):
            if f.name != "n_events":
                h.update(np.ascontiguousarray(getattr(self, f.name)).data)
        return h.hexdigest()
