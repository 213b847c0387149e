"""The flits of encoded packets are those that `framing` charges, on every hop."""

import pytest

from dysharp.isa.commands import Command, Dtype, virtual_channel
from dysharp.isa.framing import Framing, pull_train, push_train
from dysharp.isa.packets import Packet, encode, flits

STORE = Framing("store", payload_bytes=256)
DYMULTIMEM = Framing("dymultimem", payload_bytes=256, targets_per_ext=8)
EXPLICIT = Framing("explicit", payload_bytes=256, address_per_target=1, source_ack_per_target=1)
PAYLOADS = [*range(16, 257, 16), 17, 100, 255]
TARGETS = range(1, 41)


def _bytes(op: Command, **values: object) -> int:
    packet = Packet(op, virtual_channel(op), 1, 2, dtype=Dtype.NONE, **values)  # type: ignore[arg-type]
    assert len(encode(packet)) == 16 * flits(packet)
    return 16 * flits(packet)


@pytest.mark.parametrize("payload_bytes", PAYLOADS)
def test_dymultimem(payload_bytes: int) -> None:
    data = bytes(payload_bytes)
    for n in TARGETS:
        targets = tuple(range(n))
        here = {"targets": targets[:3], "local_experts": 32}
        push = push_train(DYMULTIMEM, payload_bytes, n)
        assert push.packets == 1
        assert push.up == _bytes(Command.DYST, targets=targets, payload=data)
        assert push.down == _bytes(Command.DYST_REPLICA, payload=data, **here)
        assert push.ack_up == _bytes(Command.ACK, count=1)
        assert push.ack_down == _bytes(Command.MERGED_ACK, count=n)
        pull = pull_train(DYMULTIMEM, payload_bytes, n)
        assert pull.up == _bytes(Command.DYLD, targets=targets, wanted_bytes=payload_bytes)
        assert pull.down == _bytes(Command.DYLD_REPLICA, wanted_bytes=payload_bytes, **here)
        assert pull.response == _bytes(Command.RESPONSE, count=1, payload=data)
        assert pull.result == _bytes(Command.RESULT, count=n, payload=data)
        assert (push.response, push.result, pull.ack_up, pull.ack_down) == (0, 0, 0, 0)


@pytest.mark.parametrize("payload_bytes", PAYLOADS)
@pytest.mark.parametrize(("local_experts", "n"), [(1, 1), (8, 8), (15, 15), (16, 3), (32, 3)])
def test_inline_replicas_cost_one_header_flit(payload_bytes: int, local_experts: int, n: int) -> None:
    down = push_train(DYMULTIMEM, payload_bytes, n).down
    assert down == _bytes(Command.DYST_REPLICA, targets=tuple(range(n)), local_experts=local_experts, payload=bytes(payload_bytes))


@pytest.mark.parametrize(("local_experts", "n", "further"), [(32, 4, 1), (33, 1, 1), (40, 8, 1), (40, 9, 2), (64, 40, 5)])
def test_listed_replicas_cost_more_than_framing_charges(local_experts: int, n: int, further: int) -> None:
    # Framing has no term for the extension flits of replicas: it charges what lean ones cost.
    down = push_train(DYMULTIMEM, 128, n).down
    assert down + 16 * further == _bytes(Command.DYST_REPLICA, targets=tuple(range(n)), local_experts=local_experts, payload=bytes(128))


@pytest.mark.parametrize("payload_bytes", PAYLOADS)
def test_explicit(payload_bytes: int) -> None:
    data = bytes(payload_bytes)
    for n in TARGETS:
        further = tuple(range(1, n))
        push = push_train(EXPLICIT, payload_bytes, n)
        assert push.up == _bytes(Command.EXPLICIT_ST, further=further, payload=data)
        assert push.down == _bytes(Command.ST, payload=data)
        assert push.ack_up == _bytes(Command.ACK, count=1)
        assert push.ack_down == _bytes(Command.EXPLICIT_ACK, further=further)
        pull = pull_train(EXPLICIT, payload_bytes, n)
        assert pull.up == _bytes(Command.EXPLICIT_LD, further=further, wanted_bytes=payload_bytes)
        assert pull.down == _bytes(Command.LD, wanted_bytes=payload_bytes)
        assert pull.response == _bytes(Command.LD_RESPONSE, payload=data)
        assert pull.result == _bytes(Command.EXPLICIT_RESULT, further=further, payload=data)


@pytest.mark.parametrize("payload_bytes", PAYLOADS)
def test_store(payload_bytes: int) -> None:
    data = bytes(payload_bytes)
    for n in TARGETS:
        push = push_train(STORE, payload_bytes, n)
        assert push.up == push.down == _bytes(Command.ST, payload=data) == _bytes(Command.MULTIMEM_ST, group=5, payload=data)
        assert push.ack_up == _bytes(Command.ACK, count=1)
        assert push.ack_down == _bytes(Command.MERGED_ACK, count=n)
        pull = pull_train(STORE, payload_bytes, n)
        assert pull.up == pull.down == _bytes(Command.LD, wanted_bytes=payload_bytes) == _bytes(Command.MULTIMEM_LD, wanted_bytes=payload_bytes)
        assert pull.response == _bytes(Command.LD_RESPONSE, payload=data) == _bytes(Command.RESPONSE, count=1, payload=data)
        assert pull.result == _bytes(Command.LD_RESPONSE, payload=data) == _bytes(Command.RESULT, count=n, payload=data)


def test_published_efficiency() -> None:
    """Payload flits over all flits of nine links at 128 B and eight targets: 79.1 %, 69.2 % explicit."""
    data, eight = bytes(128), tuple(range(8))
    lean = _bytes(Command.DYST, targets=eight, payload=data) + _bytes(Command.MERGED_ACK, count=8)
    lean += 8 * (_bytes(Command.DYST_REPLICA, targets=(3,), local_experts=8, payload=data) + _bytes(Command.ACK, count=1))
    explicit = _bytes(Command.EXPLICIT_ST, further=eight[1:], payload=data) + _bytes(Command.EXPLICIT_ACK, further=eight[1:])
    explicit += 8 * (_bytes(Command.ST, payload=data) + _bytes(Command.ACK, count=1))
    assert 9 * 128 / lean == pytest.approx(0.791, abs=5e-4)
    assert 9 * 128 / explicit == pytest.approx(0.692, abs=5e-4)


def test_notification_is_one_flit() -> None:
    assert _bytes(Command.NOTIFY, token=1, expert=2) == 16
