"""Wire arithmetic: the bytes that one train puts on each hop. The one place that turns payload into flits.

| rule | source |
|---|---|
| flits of 16 B, one header flit, extension flits with eight targets | DySHARP (arXiv 2605.05607), packet format |
| packets of at most 128 B payload | CAIS (HPCA 2026), methodology |
| extension flits on the source hop only | docs/design/0004, Packets; choice `dysharp.replica_form` |
| one acknowledgement flit per packet and copy, merged in the switch | derived, docs/assumptions.md |
"""

from typing import TypeVar

from dysharp.base import I64, frozen

Size = TypeVar("Size", int, I64)


@frozen
class Cast:
    """A format into which a packet is converted by itself. `packet_bytes`: of a full packet, scales included; 0 = as the payload."""

    word: str = ""
    packet_bytes: int = 0


AS_IS = Cast()


@frozen
class Framing:
    """The rule that cuts payload into packets. A field counts flits unless its name gives another unit."""

    name: str
    payload_bytes: int = 128  # most payload of one packet, 16 .. 256
    header: int = 1
    targets_per_ext: int = 0  # target ids in one extension flit on the source hop (8 = DySHARP), 0 = no list
    address_per_target: int = 0  # address flits per target after the first, on the source hop (1 = explicit addressing)
    ack: int = 1  # acknowledgement per packet and copy, member to switch
    source_ack: int = 1  # acknowledgement per packet, switch to source; the switch merges those of a multicast
    source_ack_per_target: int = 0  # address flits of that acknowledgement per target after the first
    answer: Cast = AS_IS  # of a pull's response; the switch sums in FP32
    total: Cast = AS_IS  # of a pull's result
    own: int = 0  # flits of the issuer's own copy behind the acknowledgement, of its own addend behind the request (docs/design/0041)

    def source_hop_flits(self, targets: int) -> int:
        """Flits of one packet on the source hop besides its data."""
        ext = -(-targets // self.targets_per_ext) if self.targets_per_ext else 0
        return self.header + ext + self.address_per_target * max(0, targets - 1)

    def packets(self, payload_bytes: int) -> int:
        """Packets of a payload."""
        return -(-payload_bytes // self.payload_bytes)

    def cast_bytes(self, payload_bytes: Size, cast: Cast) -> Size:
        """Bytes of a payload, or of an array of them, behind `cast`."""
        return -(-payload_bytes * (cast.packet_bytes or self.payload_bytes) // self.payload_bytes)

    def data_flits(self, payload_bytes: int, flit_bytes: int, cast: Cast = AS_IS) -> int:
        """Data flits of a payload behind `cast`: every packet fills whole flits."""
        full, rest = divmod(payload_bytes, self.payload_bytes)
        return full * -(-self.cast_bytes(self.payload_bytes, cast) // flit_bytes) + -(-self.cast_bytes(rest, cast) // flit_bytes)


@frozen
class _Train:
    """Wire bytes of one op (see `program.tables.Wires`). 0: the op does not use this hop."""

    up: int
    down: int
    response: int
    result: int
    ack_up: int
    ack_down: int
    packets: int


def push_train(framing: Framing, payload_bytes: int, targets: int, aux_bytes: int = 0, flit_bytes: int = 16) -> _Train:
    """A store or multicast of `payload_bytes` to `targets` listed targets. `aux_bytes` follow in separate packets."""
    packets = framing.packets(payload_bytes) + framing.packets(aux_bytes)
    data = framing.data_flits(payload_bytes, flit_bytes) + framing.data_flits(aux_bytes, flit_bytes)
    source_ack = framing.source_ack + framing.source_ack_per_target * max(0, targets - 1) + framing.own
    return _Train(
        up=flit_bytes * (packets * framing.source_hop_flits(targets) + data), down=flit_bytes * (packets * framing.header + data),
        response=0, result=0, ack_up=flit_bytes * packets * framing.ack, ack_down=flit_bytes * packets * source_ack, packets=packets,
    )  # fmt: skip


def pull_train(framing: Framing, payload_bytes: int, targets: int, aux_bytes: int = 0, flit_bytes: int = 16) -> _Train:
    """A load or load-reduce: requests without data, one response per member, one result, no acknowledgement.

    The request also asks every member for `aux_bytes`. They travel in separate packets.
    """
    packets = framing.packets(payload_bytes) + framing.packets(aux_bytes)
    aux = packets * framing.header + framing.data_flits(aux_bytes, flit_bytes)
    answer, total = (flit_bytes * (aux + framing.data_flits(payload_bytes, flit_bytes, cast)) for cast in (framing.answer, framing.total))
    # The result returns explicit addresses.
    listed = flit_bytes * packets * framing.source_ack_per_target * max(0, targets - 1)
    return _Train(
        up=flit_bytes * packets * (framing.source_hop_flits(targets) + framing.own), down=flit_bytes * packets * framing.header, response=answer,
        result=total + listed, ack_up=0, ack_down=0, packets=packets,
    )  # fmt: skip


def stripe_ps(wire_bytes: int, packets: int, n_links: int, rate: int) -> int:
    """Time (ps) from the mean end of a train of `packets` packets on `n_links` links to its end on the last link.

    `wire_bytes`: bytes of the train. `rate`: bytes per microsecond of all links together.
    """
    if packets == 0:
        return 0
    idle_packets = -(-packets // n_links) * n_links - packets
    return -(-idle_packets * (wire_bytes // packets) * 1_000_000 // rate)
