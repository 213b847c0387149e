"""What one GPU's wires carry beside computing: links of its domain, its NICs, the link to its host.

Times on one wire add up; wires run side by side.
"""

import math
from itertools import accumulate, pairwise

from dysharp.base import frozen
from dysharp.costs import Machine, number
from dysharp.model import Layout

SUPERCHIPS = ("gh", "gb", "vr")
"""First letters of GPUs that have a CPU beside them, without PCIe between."""


@frozen
class WireTimes:
    """Microseconds for which a wire is busy in its busier direction. `near`: links of the domain; `far`: NICs; `host`: the GPU's PCIe link.

    `stream`: rings that share weights, one behind the other with all their steps.
    """

    near: float = 0.0
    far: float = 0.0
    host: float = 0.0
    stream: float = 0.0

    def __add__(self, other: "WireTimes") -> "WireTimes":
        if other is NOTHING:
            return self
        return WireTimes(self.near + other.near, self.far + other.far, self.host + other.host, self.stream + other.stream)

    def __rmul__(self, factor: float) -> "WireTimes":
        return WireTimes(factor * self.near, factor * self.far, factor * self.host, factor * self.stream)

    @property
    def most(self) -> float:
        """The time of the busiest wire."""
        return max(self.near, self.far, self.host, self.stream)


NOTHING = WireTimes()


def beyond(pass_us: float, first: WireTimes, *more: WireTimes) -> list[float]:
    """Time by which each of `more` makes a pass longer, one after the other; `first` is inside the pass already."""
    loads = accumulate((first, *more))
    ends = list(accumulate((max(pass_us, next(loads).most), *(load.most for load in loads)), max))
    return [later - end for end, later in pairwise(ends)]


def host_rate(machine: Machine) -> float:
    """Bytes per microsecond between a GPU and its host, one way."""
    near = machine.cluster.gpu.startswith(SUPERCHIPS)
    return 1000 * number("step.superchip_host_rate" if near else "step.host_rate")


def _nic_link(machine: Machine) -> float:
    """Bytes per microsecond of the PCIe link that a GPU's NICs share with copies to the host, one way; inf where they share none.

    GPU and NIC are on one PCIe switch (user guides of DGX H100 and B200); NICs faster than the link have the next generation. Superchips have
    NVLink-C2C beside; of a GPU without a datasheet nothing is known.
    """
    if not machine.cluster.gpu or machine.cluster.gpu.startswith(SUPERCHIPS):
        return math.inf
    return host_rate(machine) * 2.0 ** max(0, math.ceil(math.log2(machine.nic / host_rate(machine))))


def _on_nics(machine: Machine, n_bytes: float, stride: int = 1) -> WireTimes:
    """`n_bytes` over a GPU's NICs to a rank that is `stride` away. It passes the spine unless both ranks are on one rail."""
    out, domain = machine.cluster.scale_out, machine.domain
    rate = out.spine_rate if out and stride % domain and domain % stride else machine.nic
    return WireTimes(far=n_bytes / rate, host=n_bytes / _nic_link(machine))


def rows(machine: Machine, layout: Layout, us: float) -> WireTimes:
    """Rows of experts that pass for `us`, on the wire that holds them longest: NICs where the group is in several domains."""
    return WireTimes(near=us) if layout.ep * layout.etp <= machine.domain else WireTimes(far=us, host=us * machine.nic / _nic_link(machine))


def ring(machine: Machine, n_bytes: float, size: int, stride: int) -> WireTimes:
    """An all-gather or reduce-scatter of `n_bytes`. Members in one domain share the way between domains, each through its own NICs."""
    if size <= 1 or not n_bytes:
        return WireTimes()
    inside = max(1, min(size, machine.domain // stride))
    if inside == size:
        return WireTimes(near=machine.group(n_bytes, size, stride))
    sent = n_bytes * (size - 1) / size
    return WireTimes(near=sent / machine.link if inside > 1 else 0.0) + _on_nics(machine, sent / inside, stride)


def sharing(machine: Machine, n_bytes: float, size: int, stride: int) -> WireTimes:
    """A ring of `ring` that gathers or scatters a layer's weights, with its steps: on GPUs, those of NCCL's tuner through so many domains."""
    wires, inside = ring(machine, n_bytes, size, stride), max(1, min(size, machine.domain // stride))
    if inside >= size or not n_bytes or not machine.cluster.gpu:
        return wires
    return wires + WireTimes(stream=machine.rails(n_bytes, size, inside))


def send(machine: Machine, n_bytes: float, layout: Layout) -> WireTimes:
    """A send to the next pipeline stage."""
    return WireTimes(near=n_bytes / machine.link) if layout.gpus <= machine.domain else _on_nics(machine, n_bytes, layout.stride("pp"))


def host_copy(machine: Machine, n_bytes: float) -> WireTimes:
    """`n_bytes` to the host or back."""
    return WireTimes(host=n_bytes / host_rate(machine))
