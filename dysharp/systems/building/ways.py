"""`Ways`: which network a PUT takes. The kinds of networks are in `program.nets`."""

from typing import ClassVar, Self

import numpy as np

from dysharp.program import BETWEEN_NET, Bools, Ints, Net, frozen, nets_of
from dysharp.specs import Cluster


@frozen
class Ways:
    """The networks of a pass: NVLink, or the link of a pair, inside a domain; NICs, or another network, between domains."""

    per_expert: ClassVar[str] = "direct"
    """The key of `workload.levels.LEVELS` by which one row per (token, expert) goes between domains."""
    cluster: Cluster
    nets: tuple[Net, ...]
    """Networks besides NVLink, in the order of `Template.net` 1, 2, ..."""

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        """The ways of a Cluster."""
        return cls(cluster, nets_of(cluster))

    @property
    def outside(self) -> tuple[Net, ...]:
        """The networks between domains: for all rows, or for rows inside a rail and rows between rails."""
        return tuple(net for net in self.nets if not net.step)

    @property
    def sides(self) -> list[tuple[str, str]]:
        """Names of both link directions inside a domain, between domains, and between rails if rails have a network of their own."""
        inside = next(((f"{net.name} out", f"{net.name} in") for net in self.nets if net.step), ("up", "down"))
        return [inside, *((f"{net.name} out", f"{net.name} in") for net in self.outside)]

    def named(self, name: str, net: int) -> str:
        """The name of a template on network `net`: "dispatch.put", "dispatch.put.nic"."""
        return f"{name}.{self.nets[net - 1].name}" if net and not self.nets[net - 1].step else name

    def far(self, node: Ints, to: Ints) -> Bools:
        """Whether a PUT from `node` to `to` goes by a network between domains."""
        if self.cluster.domains == 1:
            return np.zeros(len(node), bool)
        size = self.cluster.domain_gpus
        return np.asarray(node // size != to // size, np.bool_)

    def leaves(self, node: Ints, to: Ints) -> Bools:
        """Whether a PUT from `node` to `to` leaves `node` by a network between domains."""
        return self.far(node, to)

    def net_of(self, node: Ints, to: Ints) -> Ints:
        """`[n]` the network of a PUT from `node` to `to`: 0 = NVLink, or the own memory."""
        size, far = self.cluster.domain_gpus, self.far(node, to)
        net = far * BETWEEN_NET
        if len(self.outside) > 1:
            net += far & (node % size != to % size)
        if len(self.outside) < len(self.nets):  # no switch: the link to the GPU that is `step` places on is one network of many
            net = np.where(far | (node == to), net, len(self.outside) + (to - node) % size)
        return net


class NicOnly(Ways):
    """Rows for other GPUs of the own domain go by NIC, too."""

    per_expert = "nic_only"

    def far(self, node: Ints, to: Ints) -> Bools:
        """Whether `to` is another GPU."""
        return np.asarray(node != to, np.bool_)


class ByRail(Ways):
    """Rows for another rail go by NVLink to a GPU of that rail, which sends them by NIC."""

    per_expert = "by_rail"

    def leaves(self, node: Ints, to: Ints) -> Bools:
        """Whether the row is for the own rail."""
        size = self.cluster.domain_gpus
        return np.asarray(self.far(node, to) & (node % size == to % size), np.bool_)
