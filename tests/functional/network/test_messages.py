"""Packets that the network makes."""

from __future__ import annotations

import pytest

from dysharp.functional.network.messages import answer, dynamic_copies, plain_copies, request
from dysharp.functional.network.transaction import Transaction
from dysharp.isa.commands import Command, Dtype, Stage, VirtualChannel
from dysharp.isa.packets import decode, encode


def transaction(command: Command, **fields) -> Transaction:
    defaults = {"source": 1, "tag": 5, "plane": 0, "address": 0x100, "dtype": Dtype.INT32, "n_bytes": 32, "n_far": 3, "n_near": 0}
    return Transaction(command=command, **(defaults | fields))


def test_a_store_brings_its_payload_and_a_load_asks_for_it():
    store = request(transaction(Command.DYST, targets=(4, 5, 9)), 0, 0, bytes(32))
    load = request(transaction(Command.DYLD, targets=(4, 5, 9), stage=Stage.COMBINE), 2, 3, b"")
    assert (len(store.payload), store.wanted_bytes) == (32, 0)
    assert (len(load.payload), load.wanted_bytes, load.attempt, load.channel) == (0, 32, 2, VirtualChannel.REQUEST_3)
    for packet in (store, load):
        assert decode(encode(packet)) == packet


def test_one_replica_per_gpu_names_local_experts():
    packet = request(transaction(Command.DYST, targets=(9, 4, 5)), 0, 2, bytes(32))
    copies = dict(dynamic_copies(packet, experts_per_gpu=4, weights=False))
    assert {gpu: copy.targets for gpu, copy in copies.items()} == {1: (0, 1), 2: (1,)}
    assert {copy.op for copy in copies.values()} == {Command.DYST_REPLICA}
    assert {copy.address for copy in copies.values()} == {0x100}
    assert {copy.channel for copy in copies.values()} == {VirtualChannel.REQUEST_2}


def test_copies_of_gate_weights_say_where_a_gpu_begins_in_the_list():
    packet = request(transaction(Command.DYST, targets=(1, 4, 5, 9), weights=True), 0, 0, bytes(32))
    assert {gpu: copy.address - packet.address for gpu, copy in dynamic_copies(packet, 4, weights=True)} == {0: 0, 1: 1, 2: 3}


@pytest.mark.parametrize(
    ("command", "copy"), [(Command.EXPLICIT_ST, Command.ST), (Command.MULTIMEM_ST, Command.MULTIMEM_ST), (Command.ST, Command.ST)]
)
def test_plain_copies_drop_further_addresses(command, copy):
    further = (0x200, 0x300) if command == Command.EXPLICIT_ST else ()
    packet = request(transaction(command, far=(0, 2), further=further), 0, 0, bytes(32))
    copies = list(plain_copies(packet, (0, 2)))
    assert [(gpu, c.op, c.further) for gpu, c in copies] == [(0, copy, ()), (2, copy, ())]


def test_answers_take_lane_and_session_of_the_request():
    packet = request(transaction(Command.DYLD, targets=(4, 5, 9), stage=Stage.COMBINE), 2, 3, b"")
    result = answer(packet, Command.RESULT, 3, bytes(32))
    assert (result.source, result.tag, result.attempt, result.channel) == (1, 5, 2, VirtualChannel.ANSWER_3)
    assert (result.count, result.stage, result.dtype) == (3, Stage.COMBINE, Dtype.INT32)
    assert answer(packet, Command.ACK, 1, address=0x80).address == 0x80
    assert answer(packet, Command.ACK, 1).dtype == Dtype.NONE


def test_explicit_answers_bring_the_addresses_back_and_no_count():
    packet = request(transaction(Command.EXPLICIT_LD, further=(0x200,)), 0, 0, b"")
    result = answer(packet, Command.EXPLICIT_RESULT, 2, bytes(32))
    assert (result.further, result.count) == ((0x200,), 0)
    assert answer(packet, Command.RESPONSE, 1, bytes(32)).stage == Stage.COMBINE  # plain loads belong to Combine
