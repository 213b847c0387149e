"""Programs of several networks: a put and its way back, messages, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dysharp.base.errors import ProgramError
from dysharp.isa.framing import Framing
from dysharp.oracle import run_oracle
from dysharp.program import Alloc, Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To
from dysharp.program.nets import nets_of
from dysharp.program.tables import Net
from dysharp.program.verify import verify
from dysharp.specs import load_cluster

HARDWARE = Hardware(450_000, 250_000, 500_000, 500_000, 500_000, 500_000, 8, 73_728, 18)
BARE = Framing("bare", payload_bytes=1 << 30, header=0, ack=0, source_ack=0)
NIC = nets_of(load_cluster("hw-dgx-h100-x2"))[0]


def ping(n_bytes: int, net: Net = NIC, times: int = 1, back: int = 0, to_net: int = 1) -> Program:
    """Node 0 puts `n_bytes` to node 1 `times` times; with `back`, node 1 puts as many when they have arrived."""
    b = ProgramBuilder(HARDWARE, 2, nets=(net,), domain_nodes=1)
    put = b.template(Template("put", Kind.PUT, "other", framing=b.framing(BARE), net=to_net))
    _, row, tile = b.regions([1, 0], [times, 1], n_bytes, [times, 1], alloc=Alloc.PREFIX)
    issuers = [b.issuer(node, Discipline.PROGRAM_ORDER) for node in range(2)]
    b.ops(put, [0] * times, issuer=issuers[0], bytes=n_bytes, to=To([1] * times, [1] * times, [1] * times, range(row, row + times)))
    if back:
        answer = b.ops(put, [1], issuer=issuers[1], bytes=n_bytes, to=To([1], [0], [1], [row + times]))
        b.edges(Tail.TILE_READY, tile, Head.OP_ISSUE, answer)
    else:
        b.ops(put, [1], issuer=issuers[1], bytes=n_bytes, to=To([1], [0], [1], [row + times]))
    return b.build()


def test_large_put_takes_its_bytes_and_two_hops():
    program = ping(1_000_000_000)
    verify(program)
    assert run_oracle(program).done[0] / 1e6 == pytest.approx(1e9 / 47_000 + 8, rel=1e-6)


def test_a_train_by_nic_ends_on_one_link():
    """Trains of NVLink end on the most loaded of its links, later than their bytes say; a NIC is one link."""
    wires = ping(8).wires
    assert (wires.stripe_up.max(), wires.stripe_response.max()) == (0, 0)
    trace = run_oracle(ping(16 * 47_000))
    assert trace.end[0] - trace.start[0] == 16_000_000
    assert ping(8, to_net=0).wires.stripe_up.min() > 0


def test_ping_pong_of_small_puts():
    measured_us = 16.7  # GPU-initiated puts, H100, arXiv 2511.15076
    assert run_oracle(ping(8, back=1)).time_ps / 1e6 == pytest.approx(measured_us, rel=0.05)


def test_messages_cost_time_on_the_link_out():
    slow = replace(NIC, message_ps=500_000)
    many, one = run_oracle(ping(4096, slow, times=100)), run_oracle(ping(4096, slow))
    each_us = (many.done[:100].max() - one.done[0]) / 99 / 1e6
    assert each_us == pytest.approx(0.5 + 4096 / 47_000, rel=1e-3)
    assert many.up_busy.tolist() == [0, 0, 100 * 4096, 4096]  # messages are no bytes


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: replace(p, domain_nodes=3), "found 2 nodes in domains of 3, expected a multiple"),
        (lambda p: replace(p, nets=(replace(NIC, rate=0),)), "network 'nic': found rate 0, expected 1 or more"),
        (lambda p: replace(p, nets=(replace(NIC, rates=(1,)),)), "found 1 rates of nodes, expected 2 of 1 or more"),
        (lambda p: replace(p, nets=()), "found network 1, expected 0 .. 0"),
        (lambda p: replace(p, nets=(replace(NIC, train_bytes=7),)), "bytes of one train: found 8, expected 0 .. 7"),
    ],
)
def test_networks_in_range(change, text):
    with pytest.raises(ProgramError, match=text):
        verify(change(ping(8)))


def test_nvlink_stays_inside_a_domain():
    with pytest.raises(ProgramError, match="found member 1 of domain 1 by NVLink, expected one of domain 0 of node 0"):
        verify(ping(8, to_net=0))


def test_notifications_stay_inside_a_domain():
    b = ProgramBuilder(HARDWARE, 2, nets=(NIC,), domain_nodes=1)
    put = b.template(Template("put", Kind.PUT, "other", framing=b.framing(BARE), net=1))
    join = b.template(Template("join", Kind.JOIN, "other"))
    _, row, tile = b.regions([1], [1], 8, 1, alloc=Alloc.PREFIX)
    b.ops(put, [0], issuer=b.issuer(0, Discipline.PROGRAM_ORDER), bytes=8, to=To([1], [1], [1], [row]))
    b.notify([row], b.ops(join, [0]))
    b.edges(Tail.TILE_READY, tile, Head.TILE_NOTIFY, tile)
    with pytest.raises(ProgramError, match="found a notification to node 0, expected one inside domain 1"):
        verify(b.build())
