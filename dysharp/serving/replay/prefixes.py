"""`PrefixCache`: blocks of tokens by their hashes, as vLLM's prefix caching keeps them, and tiers below that take what it evicts.

A block is pinned while a request uses it, then idle. Idle blocks stay until room is needed: least recently used first, and of one request its tail
before its head (vLLM, docs/design/prefix_caching.md).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tier:
    """Memory below the GPU's. `capacity` in blocks; `block_us`: time of a block on its way to the GPU; `free`: when its link is free."""

    name: str
    capacity: int
    block_us: float
    blocks: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    hits: int = 0
    free: float = 0.0

    def put(self, name: Hashable) -> Hashable | None:
        """Keep a block. Returns the one that goes for it."""
        self.blocks[name] = None
        self.blocks.move_to_end(name)
        return self.blocks.popitem(last=False)[0] if len(self.blocks) > self.capacity else None


class PrefixCache:
    """KV blocks on a GPU: at most `capacity`. A hash names `weight` of them; `others`: those that requests hold without hashes."""

    def __init__(self, capacity: int, weight: int = 1, tiers: Sequence[Tier] = ()) -> None:
        self.capacity, self.weight, self.tiers, self.others = capacity, weight, tiers, 0
        self.pinned: dict[Hashable, int] = {}
        self.idle: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def free(self) -> int:
        """KV blocks that are free or can be evicted."""
        return self.capacity - self.others - self.weight * len(self.pinned)

    def hits(self, names: Iterable[Hashable]) -> int:
        """Blocks at the head of a prompt that are here."""
        found, pinned, idle = 0, self.pinned, self.idle
        for name in names:
            if name not in pinned and name not in idle:
                break
            found += 1
        return found

    def needs(self, names: Iterable[Hashable]) -> int:
        """KV blocks by which `free` falls if all of `names` are pinned."""
        pinned = self.pinned
        return self.weight * sum(name not in pinned for name in names)

    def below(self, names: Sequence[Hashable], now: float) -> tuple[int, float]:
        """(blocks at the head of `names` that are in tiers, when the last of them is on the GPU). A tier's link moves one after the other."""
        found, ready = 0, now
        for name in names if self.tiers else ():
            tier = next((one for one in self.tiers if name in one.blocks), None)
            if tier is None:
                break
            tier.blocks.move_to_end(name)
            tier.hits += 1
            tier.free = max(now, tier.free) + tier.block_us
            found, ready = found + 1, max(ready, tier.free)
        return found, ready

    def pin(self, names: Iterable[Hashable]) -> None:
        """A request uses blocks: those that are not here are computed or loaded."""
        pinned, idle = self.pinned, self.idle
        for name in names:
            used = pinned.get(name)
            if used is not None:
                pinned[name] = used + 1
                continue
            if name in idle:
                del idle[name]
            pinned[name] = 1
        self.shrink()

    def unpin(self, names: Sequence[Hashable]) -> None:
        """A request is done: blocks that nobody uses are idle, its head the last to go."""
        pinned, idle = self.pinned, self.idle
        for name in reversed(names):
            if pinned[name] > 1:
                pinned[name] -= 1
            else:
                del pinned[name]
                idle[name] = None

    def hold(self, blocks: int) -> None:
        """Requests hold `blocks` KV blocks more without hashes (negative: fewer)."""
        self.others += blocks
        self.shrink()

    def shrink(self) -> None:
        """Evict until all fits. Evicted blocks go down from tier to tier."""
        if not self.idle:
            return
        over = -((self.capacity - self.others) // self.weight - len(self.pinned) - len(self.idle))
        for _ in range(min(over, len(self.idle))):
            name: Hashable | None = self.idle.popitem(last=False)[0]
            for tier in self.tiers:
                name = None if name is None else tier.put(name)

    def touch(self, names: Sequence[Hashable]) -> int:
        """A request comes and goes: the blocks of its prompt that were here."""
        found = self.hits(names)
        self.pin(names)
        self.unpin(names)
        return found

    def clear(self) -> None:
        """All is lost, in tiers too."""
        self.pinned.clear()
        for held in (self.idle, *(tier.blocks for tier in self.tiers)):
            held.clear()
        self.others = 0
