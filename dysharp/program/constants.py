"""The constants of a Cluster at burst level: links, classes of virtual channels, reduction tables."""

from __future__ import annotations

from dysharp.program.tables import Hardware, Net
from dysharp.specs import Cluster, choice_int
from dysharp.units import PS_PER_US, ns_to_ps

CLASSES = ("requests", "responses", "other")
"""Traffic classes of systems.

Stores of Dispatch, stores of Combine and requests of pulls are one class, because all of them use the eight request
channels of a port (DySHARP, arXiv 2605.05607: sixteen channels per input port, eight for requests and eight for
responses).
"""
REQUESTS, RESPONSES, OTHER = range(3)
PACKET_BYTES = 128


def hardware_of(cluster: Cluster) -> Hardware:
    """The constants of `cluster` at burst level. `vc_bytes` is the buffer of a channel over all ports of a GPU."""
    hop = cluster.link_latency_ps
    return Hardware(
        rate=cluster.link_bytes_per_us,
        lat=hop,
        ack=2 * hop,
        notify=2 * hop,
        responder=ns_to_ps(choice_int("machine.responder_ns")),
        local=ns_to_ps(choice_int("machine.local_ns")),
        n_vcs=min(cluster.n_vcs, choice_int("machine.vcs_per_class")),
        vc_bytes=cluster.vc_flits * cluster.flit_bytes * cluster.links_per_gpu,
        n_links=cluster.links_per_gpu,
        flit=cluster.flit_bytes,
        notify_bytes=cluster.flit_bytes,
        train_bytes=choice_int("machine.train_bytes"),
        memory_rate=cluster.shared_memory_rate,
    )


NIC = "nic"
"""Name of the network between NVLink domains."""
NIC_NET = 1
"""Its number (`Template.net`)."""


SPINE = "spine"
"""Name of the network of NICs between rails: from leaf to leaf through the spine."""
SPINE_NET = 2
"""Its number; a Program has it where the spine is oversubscribed."""
XGMI = "xgmi"
"""Name of the networks of links between pairs of GPUs, where a fabric has no switch."""
SPINE_US = 1.0  # more on the way through the spine: small writes of host-posted InfiniBand, same leaf against another leaf


def nets_of(cluster: Cluster) -> tuple[Net, ...]:
    """The networks of `cluster` besides NVLink: NICs between domains, then the links of a fabric without a switch."""
    return (*_between_domains(cluster), *_links_of_pairs(cluster))


def _links_of_pairs(cluster: Cluster) -> tuple[Net, ...]:
    """A network per other GPU of a domain, () with a switch. A put is done when it is delivered, as the kernels poll flags."""
    if cluster.n_switches:
        return ()
    ring, rate = cluster.domain_gpus, cluster.pair_bytes_per_us
    return tuple(Net(XGMI, rate, cluster.link_latency_ps, 0, step=step, ring=ring) for step in range(1, ring))


def _between_domains(cluster: Cluster) -> tuple[Net, ...]:
    """The networks between domains: its NICs, or () where one domain is in use.

    With an oversubscribed spine, what passes it is a network of its own: every NIC has an equal share of its leaf's uplinks.
    A NIC's rows inside its rail and rows between rails do not wait for each other there.

    The one-way time of a small put is two hops. A put is done when it is delivered: no kernel waits for its completion.
    """
    out = cluster.scale_out
    if out is None or cluster.domains == 1:
        return ()
    way = round(out.latency_us * PS_PER_US)
    message, rates = round(out.message_us * PS_PER_US), out.rates(cluster.n_gpus)
    nic = Net(NIC, out.rate, way // 2, 0, message, rates=rates)
    if out.oversubscription == 1:
        return (nic,)
    share = out.rate / out.oversubscription
    longer = (way + round(SPINE_US * PS_PER_US)) // 2
    slow = tuple(max(1, round(rate * share / out.rate)) for rate in rates)
    return nic, Net(SPINE, max(1, round(share)), longer, 0, message, rates=slow)


def sessions_of_table(cluster: Cluster) -> int:
    """Reduction sessions (at least 1) in the table of one port.

    A session takes `dysharp.fp32_sum_entries` entries of 128 B.
    """
    return max(1, cluster.reduction_buffer_bytes // (PACKET_BYTES * choice_int("dysharp.fp32_sum_entries")))
