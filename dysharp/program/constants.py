"""The constants of a Cluster at burst level: links, classes of virtual channels, reduction tables."""

from dataclasses import replace

from dysharp.base import AnyMapping, ns_to_ps
from dysharp.program.tables import Hardware
from dysharp.specs import Cluster, choice_int, session_bytes

CLASSES = ("requests", "responses", "other")
"""Traffic classes of systems.

Stores of Dispatch, stores of Combine and requests of pulls are one class, because all of them use the eight request
channels of a port (DySHARP, arXiv 2605.05607: sixteen channels per input port, eight for requests and eight for
responses).
"""
REQUESTS, RESPONSES, OTHER = range(3)


def hardware_of(cluster: Cluster) -> Hardware:
    """The constants of `cluster` at burst level. `vc_bytes` is the buffer of a channel over all ports of a GPU."""
    hop = cluster.link_latency_ps
    return Hardware(
        rate=cluster.link_bytes_per_us, lat=hop, ack=2 * hop, notify=2 * hop, responder=ns_to_ps(choice_int("machine.responder_ns")),
        local=ns_to_ps(choice_int("machine.local_ns")), n_vcs=min(cluster.n_vcs, choice_int("machine.vcs_per_class")),
        vc_bytes=cluster.vc_flits * cluster.flit_bytes * cluster.links_per_gpu, n_links=cluster.links_per_gpu, flit=cluster.flit_bytes,
        notify_bytes=cluster.flit_bytes, train_bytes=choice_int("machine.train_bytes"), memory_rate=cluster.shared_memory_rate, ack_turns=True,
    )  # fmt: skip


def hardware_with(m: Hardware, fabric: AnyMapping) -> Hardware:
    """`m` with the options `fabric.*` of the packet level that the burst level has, too."""
    flits = fabric.get("vc_flits", -1)
    return replace(
        m, ack_turns=fabric["acks"] == "turns" if "acks" in fabric else m.ack_turns,
        hashed_links=fabric["stripe"] == "rotating" if "stripe" in fabric else m.hashed_links,
        n_vcs=m.n_vcs if fabric.get("n_vcs", -1) < 0 else max(1, fabric["n_vcs"]), vc_bytes=m.vc_bytes if flits < 0 else flits * m.flit * m.n_links,
    )  # fmt: skip


def sessions_of_table(cluster: Cluster) -> int:
    """Reduction sessions (at least 1) in the table of one port."""
    return max(1, cluster.reduction_buffer_bytes // session_bytes())
