"""The kinds of networks besides NVLink, each with its words: a fourth kind is one more `add(NetKind(...))`."""

from collections.abc import Callable

from dysharp.base import PS_PER_US, frozen_keywords
from dysharp.program.tables import Net
from dysharp.specs import Cluster

INSIDE, BETWEEN, RAILS = "inside", "between", "rails"
"""Places of a network: GPUs of one domain, instead of NVLink; GPUs of different domains; those of them on different rails."""
BETWEEN_NET = 1
"""Number (`Template.net`) of the network between domains in every Program that has one."""


@frozen_keywords
class NetKind:
    """A kind of network. Texts name its links out, its links in, and its latency."""

    name: str
    place: str
    """`INSIDE`, `BETWEEN` or `RAILS`. Where two kinds have networks for one place of a Cluster, the kind that was added last has the place."""
    nets: Callable[[Cluster], tuple[Net, ...]]
    """The networks of this kind in a Cluster; (): it has none. A kind between domains or rails has one at most."""
    causes: tuple[str, str, str]
    """Words for time on links out, on links in, and in latencies."""
    links: tuple[str, str]
    """Words for the links of GPU {}."""
    colours: tuple[str, str, str]
    """Colours of the causes, "#RRGGBB"."""
    column: tuple[str, str] = ("", "")
    """Heading of the column in a comparison, and what the column says. "": no column."""

    @property
    def sides(self) -> tuple[str, str]:
        """Keys of its links out and in, in traffic and utilization of a Row."""
        return f"{self.name} out", f"{self.name} in"

    @property
    def cause_keys(self) -> tuple[str, str, str]:
        """Keys of its causes in `Row.attribution`."""
        return f"{self.name}_out_us", f"{self.name}_in_us", f"{self.name}_latency_us"


NET_KINDS: dict[str, NetKind] = {}
"""Every kind by name, in the order in which outputs list them."""


def add(kind: NetKind) -> NetKind:
    """Make `kind` known to Programs and to all outputs."""
    NET_KINDS[kind.name] = kind
    return kind


def nets_of(cluster: Cluster) -> tuple[Net, ...]:
    """The networks of `cluster` besides NVLink: between domains, between rails, then those inside a domain."""
    return tuple(net for place in (BETWEEN, RAILS, INSIDE) for net in _at(place, cluster))


def _at(place: str, cluster: Cluster) -> tuple[Net, ...]:
    kinds = [kind for kind in NET_KINDS.values() if kind.place == place]
    return next((nets for kind in reversed(kinds) if (nets := kind.nets(cluster))), ())


def _nics(cluster: Cluster) -> tuple[Net, ...]:
    """The one-way time of a small put is two hops. A put is done when it is delivered: no kernel waits for its completion."""
    out = cluster.scale_out
    if out is None or cluster.domains == 1:
        return ()
    way, message = round(out.latency_us * PS_PER_US), round(out.message_us * PS_PER_US)
    return (Net("nic", out.rate, way // 2, 0, message, rates=out.rates(cluster.n_gpus)),)


SPINE_US = 1.0  # more on the way through the spine: small writes of host-posted InfiniBand, same leaf against another leaf


def _spine(cluster: Cluster) -> tuple[Net, ...]:
    """What passes an oversubscribed spine is a network of its own: every NIC has an equal share of its leaf's uplinks.

    A NIC's rows inside its rail and rows between rails do not wait for each other there.
    """
    out = cluster.scale_out
    if out is None or cluster.domains == 1 or out.oversubscription == 1:
        return ()
    share = out.rate / out.oversubscription
    longer = (round(out.latency_us * PS_PER_US) + round(SPINE_US * PS_PER_US)) // 2
    slow = tuple(max(1, round(rate * share / out.rate)) for rate in out.rates(cluster.n_gpus))
    return (Net("spine", max(1, round(share)), longer, 0, round(out.message_us * PS_PER_US), rates=slow),)


def _pairs(cluster: Cluster) -> tuple[Net, ...]:
    """A network per other GPU of a domain, () with a switch. A put is done when it is delivered, as the kernels poll flags."""
    if cluster.n_switches:
        return ()
    ring, rate = cluster.domain_gpus, cluster.pair_bytes_per_us
    return tuple(Net("xgmi", rate, cluster.link_latency_ps, 0, step=step, ring=ring) for step in range(1, ring))


NIC = add(
    NetKind(
        name="nic", place=BETWEEN, nets=_nics, causes=("NICs out", "NICs in", "latencies between domains"),
        links=("the sending side of the NIC of GPU {}", "the receiving side of the NIC of GPU {}"), colours=("#F0E442", "#882255", "#44AA99"),
        column=("NIC", "share of the time for which the NICs send, or receive if that is more; mean over GPUs"),
    )
)  # fmt: skip
SPINE = add(
    NetKind(
        name="spine", place=RAILS, nets=_spine, causes=("uplinks of leaf switches", "downlinks of leaf switches", "latencies through the spine"),
        links=("the leaf uplink of GPU {}", "the leaf downlink of GPU {}"), colours=("#AA4499", "#117733", "#DDCC77"),
    )
)  # fmt: skip
XGMI = add(
    NetKind(
        name="xgmi", place=INSIDE, nets=_pairs, causes=("links between GPUs out", "links between GPUs in", "latencies of links between GPUs"),
        links=("the outgoing links of GPU {}", "the incoming links of GPU {}"), colours=("#88CCEE", "#999933", "#CC6677"),
    )
)  # fmt: skip
