"""What a network is: router, topology, traffic. Values that cannot run are refused here, one line each."""

import math
from dataclasses import field

from dysharp.base import ConfigError, Numbers, Texts, check_word, frozen

ALLOCATORS = ("separable_input_first", "islip")
TOPOLOGIES = ("fly", "fattree", "ring")
PATTERNS = ("uniform", "hotspot", "transpose", "bitcomp", "bitrev", "shuffle", "tornado", "neighbor", "permutation")
WORD = 64  # ports and VCs are bits of one word
MAX_SLOTS = 1 << 22  # packets in flight that a flit can name


def _whole(owner: str, name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{owner}.{name} is {value!r}, expected a whole number from {low} to {high}")


def _one_of(owner: str, name: str, value: str, known: Texts) -> None:
    check_word(value, known, f"{owner}.{name} is {value!r}")


@frozen
class RouterConfig:
    """An input-queued virtual-channel router. Delays are cycles; `vc_buf_size` is flits per VC of an input port.

    Wormhole on VCs: a packet may be longer than a buffer. `internal_speedup` clocks the whole router several times per link cycle,
    `input_speedup` and `output_speedup` give each port several lanes into and out of the crossbar.

    `hold_switch`: packets are served whole (virtual cut-through). A VC that wins the switch keeps its lanes of input and output, in the same
    internal step of every cycle, until its tail has passed. Links send the packets of an output in the order of their wins.
    A packet claims only a VC with room for the whole packet (a source takes the emptiest VC), so its flits follow each other without a gap. A step
    allocates until no waiting packet could get a free lane.
    """

    num_vcs: int = 4
    vc_buf_size: int = 8
    vc_allocator: str = "separable_input_first"
    sw_allocator: str = "separable_input_first"
    internal_speedup: int = 1
    input_speedup: int = 1
    output_speedup: int = 1
    speculative: bool = False
    routing_delay: int = 0
    vc_alloc_delay: int = 1
    sw_alloc_delay: int = 1
    traversal_delay: int = 1
    credit_delay: int = 0
    hold_switch: bool = False

    def __post_init__(self) -> None:
        _whole("router", "num_vcs", self.num_vcs, 1, WORD)
        _whole("router", "vc_buf_size", self.vc_buf_size, 1, 1 << 20)
        _one_of("router", "vc_allocator", self.vc_allocator, ALLOCATORS)
        _one_of("router", "sw_allocator", self.sw_allocator, ALLOCATORS)
        for name in ("internal_speedup", "input_speedup", "output_speedup"):
            _whole("router", name, getattr(self, name), 1, 8)
        if self.num_vcs < self.input_speedup:
            raise ConfigError(f"router.input_speedup is {self.input_speedup}, expected at most num_vcs = {self.num_vcs}: a lane serves whole VCs")
        for name in ("vc_alloc_delay", "sw_alloc_delay", "traversal_delay"):
            _whole("router", name, getattr(self, name), 1, 64)
        for name in ("routing_delay", "credit_delay"):
            _whole("router", name, getattr(self, name), 0, 64)
        if self.hold_switch and self.speculative:
            raise ConfigError("router.hold_switch is set beside router.speculative, expected one of them: speculation allocates flit by flit")
        if self.speculative and self.vc_alloc_delay + self.sw_alloc_delay > 2:
            raise ConfigError("router.speculative needs vc_alloc_delay = sw_alloc_delay = 1: the two stages share one cycle")


@frozen
class NetworkConfig:
    """`fly`: k-ary n-fly, n = 1 is one k x k crossbar; `fattree`: k-ary n-tree; `ring`: k routers in one direction, which can deadlock.

    `terminal_delay`, `link_delay`: cycles of a link between a terminal and a router, between two routers (data and credits alike).
    """

    topology: str = "fly"
    k: int = 8
    n: int = 1
    router: RouterConfig = field(default_factory=RouterConfig)
    terminal_delay: int = 1
    link_delay: int = 1

    def __post_init__(self) -> None:
        _one_of("network", "topology", self.topology, TOPOLOGIES)
        _whole("network", "k", self.k, 1 if self.topology == "fly" else 2, 4096)
        _whole("network", "n", self.n, 1, 1 if self.topology == "ring" else 12)
        _whole("network", "terminal_delay", self.terminal_delay, 1, 10_000)
        _whole("network", "link_delay", self.link_delay, 1, 10_000)
        lanes = max(self.router.input_speedup, self.router.output_speedup)
        if self.radix * lanes > WORD:
            raise ConfigError(f"network: a router has {self.radix} ports of {lanes} lanes, expected at most {WORD} lanes in all")
        if self.n_terminals > 1 << 14:
            raise ConfigError(f"network: {self.n_terminals} terminals, expected at most {1 << 14}")

    @property
    def n_terminals(self) -> int:
        """Terminals: each one source and one sink."""
        return self.k if self.topology == "ring" else self.k**self.n

    @property
    def radix(self) -> int:
        """Ports of the largest router."""
        return {"fly": self.k, "fattree": 2 * self.k if self.n > 1 else self.k, "ring": 2}[self.topology]


@frozen
class Traffic:
    """Synthetic traffic: Bernoulli sources with infinite queues, packets of `packet_flits`.

    `pattern`: uniform (a terminal sends to itself, too); hotspot (destination drawn by `weights`, one per terminal, missing ones are 1);
    a permutation of the terminal number; `permutation` with `targets`, one per terminal. `burst = (on, off)`: mean cycles of the two
    states of an on-off source, which creates packets in the state "on" only; the mean load stays the one asked for.
    """

    pattern: str = "uniform"
    packet_flits: int = 1
    weights: tuple[float, ...] = ()
    targets: Numbers = ()
    burst: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _one_of("traffic", "pattern", self.pattern, PATTERNS)
        _whole("traffic", "packet_flits", self.packet_flits, 1, 1 << 16)
        for name, wanted in (("weights", self.pattern == "hotspot"), ("targets", self.pattern == "permutation")):
            given: tuple[float, ...] = getattr(self, name)
            if bool(given) != wanted:
                raise ConfigError(
                    f"traffic.{name} has {len(given)} entries, expected {'some' if wanted else 'none'} with the pattern {self.pattern!r}"
                )
        if not all(math.isfinite(w) and w >= 0 for w in self.weights):
            raise ConfigError(f"traffic.weights is {self.weights}, expected finite numbers, none negative")
        if self.burst is not None and not all(math.isfinite(c) and c >= 1 for c in self.burst):
            raise ConfigError(f"traffic.burst is {self.burst}, expected mean cycles of on and off, each at least 1")
