"""One file per block: `protocol/` behind its pins, and its `BLOCK`."""
