"""Payload efficiency of packet formats: data flits of a multicast store divided by all its flits, over all its links.

Source: DySHARP (arXiv 2605.05607), Fig. 19(a). Its two stated values fit a count over nine links for eight targets on
eight GPUs, with requests and acknowledgements. Two functions give the efficiency and share no arithmetic: one takes the
trains of `framing`, the other encodes packets and counts their flits.
"""

from dysharp.base import ConfigError, entry_of, frozen
from dysharp.isa.commands import FLIT_BYTES, MAX_PAYLOAD, Command, virtual_channel
from dysharp.isa.framing import Framing, push_train
from dysharp.isa.packets import Packet, encode

LISTED_LOCALLY = 33  # with so many local experts a replica lists its targets in an extension flit


@frozen
class _StoreFormat:
    """How a store names its targets.

    `more_listed`: addresses in the list besides one per target. `replica_flits`: extension flits on every copy.
    """

    framing: Framing
    more_listed: int = 0
    replica_flits: int = 0


# "explicit": flit 0 holds the first address. "explicit-8": flit 0 holds no address.
FORMATS = {
    "ideal": _StoreFormat(Framing("ideal", MAX_PAYLOAD)),  # one header flit, as with a static multicast group
    "dysharp": _StoreFormat(Framing("dymultimem", MAX_PAYLOAD, targets_per_ext=8)),
    "dysharp-listed": _StoreFormat(Framing("dymultimem", MAX_PAYLOAD, targets_per_ext=8), replica_flits=1),
    "explicit": _StoreFormat(Framing("explicit", MAX_PAYLOAD, address_per_target=1, source_ack_per_target=1)),
    "explicit-8": _StoreFormat(Framing("explicit", MAX_PAYLOAD, address_per_target=1, source_ack_per_target=1), more_listed=1),
}


def closed_efficiency(name: str, payload_bytes: int, targets: int = 8) -> float:
    """Payload efficiency of one packet of `payload_bytes` (1 .. 256) to `targets` GPUs, from trains of `framing`."""
    form = _checked(name, payload_bytes, targets)
    train = push_train(form.framing, payload_bytes, targets + form.more_listed)
    wire = train.up + train.ack_down + targets * (train.down + FLIT_BYTES * form.replica_flits + train.ack_up)
    return (1 + targets) * (-(-payload_bytes // FLIT_BYTES) * FLIT_BYTES) / wire


def encoded_efficiency(name: str, payload_bytes: int, targets: int = 8) -> float:
    """Payload efficiency from encoded packets: request, copies, acknowledgements, merged acknowledgement."""
    _checked(name, payload_bytes, targets)
    data, ids = bytes(payload_bytes), tuple(range(targets))
    if name == "ideal":
        sent = [_bytes(Command.MULTIMEM_ST, group=1, payload=data), _bytes(Command.MERGED_ACK, count=targets)]
        copy = _bytes(Command.ST, payload=data)
    elif name in ("dysharp", "dysharp-listed"):
        sent = [_bytes(Command.DYST, targets=ids, payload=data), _bytes(Command.MERGED_ACK, count=targets)]
        copy = _bytes(Command.DYST_REPLICA, targets=(0,), local_experts=8 if name == "dysharp" else LISTED_LOCALLY, payload=data)
    else:
        further = tuple(range(1, targets + (name == "explicit-8")))
        sent = [_bytes(Command.EXPLICIT_ST, further=further, payload=data), _bytes(Command.EXPLICIT_ACK, further=further)]
        copy = _bytes(Command.ST, payload=data)
    wire = sum(sent) + targets * (copy + _bytes(Command.ACK, count=1))
    return (1 + targets) * (len(data) + -len(data) % FLIT_BYTES) / wire


def _checked(name: str, payload_bytes: int, targets: int) -> _StoreFormat:
    """The format with a name of FORMATS. Raises ConfigError with the nearest name, and for sizes that no packet has."""
    if not 1 <= payload_bytes <= MAX_PAYLOAD or targets < 1:
        raise ConfigError(f"payload efficiency: found {payload_bytes} bytes to {targets} targets, expected 1 to {MAX_PAYLOAD} bytes and a target")
    return entry_of(name, FORMATS, f"packet format {name[:40]!r}")


def _bytes(op: Command, **values: object) -> int:
    return len(encode(Packet(op, virtual_channel(op), source=1, tag=2, **values)))  # type: ignore[arg-type]
