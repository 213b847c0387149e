"""Wire arithmetic: how many bytes one train puts on each hop. The one place that turns payload into flits.

Source: spec/dysharp.md sections 1.3 and 2.2 (16 B flits, one header flit, 128 B packets, extension flits on the source hop only, one
acknowledgement flit per packet and copy, acknowledgements of a multicast merged in the switch).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framing:
    """Rule that cuts payload into packets. Counts are flits unless the name says otherwise."""

    name: str
    payload_bytes: int = 128  # per packet, 16 .. 256
    header: int = 1
    targets_per_ext: int = 0  # target ids in one extension flit on the source hop (8 = DySHARP), 0 = no list
    address_per_target: int = 0  # further flits per further target on the source hop (1 = explicit addressing)
    ack: int = 1  # per packet and copy, member to switch
    source_ack: int = 1  # per packet, switch to source (a multicast's are merged)
    source_ack_per_target: int = 0  # more per further target (explicit addressing)

    def source_hop_flits(self, targets: int) -> int:
        """Flits of one packet on the source hop besides its data."""
        ext = -(-targets // self.targets_per_ext) if self.targets_per_ext else 0
        return self.header + ext + self.address_per_target * max(0, targets - 1)

    def packets(self, payload_bytes: int) -> int:
        return -(-payload_bytes // self.payload_bytes)

    def data_flits(self, payload_bytes: int, flit_bytes: int) -> int:
        full, rest = divmod(payload_bytes, self.payload_bytes)
        return full * -(-self.payload_bytes // flit_bytes) + -(-rest // flit_bytes)


@dataclass(frozen=True, slots=True)
class Train:
    """Wire bytes of one op (see `program.tables.Wires`); 0 where a hop does not exist."""

    up: int
    down: int
    response: int
    result: int
    ack_up: int
    ack_down: int
    packets: int


def push_train(framing: Framing, payload_bytes: int, targets: int, aux_bytes: int = 0, flit_bytes: int = 16) -> Train:
    """A store or multicast of `payload_bytes` to `targets` listed targets, with `aux_bytes` in packets of their own behind it."""
    packets = framing.packets(payload_bytes) + framing.packets(aux_bytes)
    data = framing.data_flits(payload_bytes, flit_bytes) + framing.data_flits(aux_bytes, flit_bytes)
    source_ack = framing.source_ack + framing.source_ack_per_target * max(0, targets - 1)
    return Train(
        up=flit_bytes * (packets * framing.source_hop_flits(targets) + data),
        down=flit_bytes * (packets * framing.header + data),
        response=0,
        result=0,
        ack_up=flit_bytes * packets * framing.ack,
        ack_down=flit_bytes * packets * source_ack,
        packets=packets,
    )


def pull_train(framing: Framing, payload_bytes: int, targets: int, aux_bytes: int = 0, flit_bytes: int = 16) -> Train:
    """A load or load-reduce: requests without data, one response per member, one result. Nothing is acknowledged.

    `aux_bytes` more of every member are asked for and answered in packets of their own.
    """
    packets = framing.packets(payload_bytes) + framing.packets(aux_bytes)
    data = framing.data_flits(payload_bytes, flit_bytes) + framing.data_flits(aux_bytes, flit_bytes)
    answer = flit_bytes * (packets * framing.header + data)
    listed = flit_bytes * packets * framing.source_ack_per_target * max(0, targets - 1)  # explicit addresses come back with the result
    return Train(
        up=flit_bytes * packets * framing.source_hop_flits(targets),
        down=flit_bytes * packets * framing.header,
        response=answer,
        result=answer + listed,
        ack_up=0,
        ack_down=0,
        packets=packets,
    )


def stripe_ps(wire_bytes: int, packets: int, n_links: int, rate: int) -> int:
    """Time (ps) by which the last byte on the most loaded of `n_links` links trails the average of a train of `packets` packets."""
    if packets == 0:
        return 0
    idle_packets = -(-packets // n_links) * n_links - packets
    return -(-idle_packets * (wire_bytes // packets) * 1_000_000 // rate)
