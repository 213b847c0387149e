"""`protocol.rpm` behind the pins of the packet manager. A byte of the block stands for several bytes of the model's line."""

from dataclasses import replace
from random import Random

from dysharp.protocol import rpm
from dysharp.silicon.rtl.blocks import Block
from dysharp.silicon.rtl.check import Model, Values
from dysharp.silicon.rtl.packet_manager import PacketManager, PacketParameters


class PacketModel(Model):
    """Stores of a few rows to all peers, links that stall, fences, and lines that grow old."""

    def __init__(self, parameters: PacketParameters, random: Random):
        super().__init__()
        self.p = p = parameters
        self.timer = random.choice((3, 6, 14))
        self.state = rpm.empty(p.peers, entries=p.entries, timer=self.timer)
        self.width = rpm.LINE_BYTES // p.line_bytes
        self.stall, self.load = random.choice((0, 0.3, 0.6)), random.choice((0.4, 1))
        self.whole, self.fences = random.choice((0.2, 0.7)), random.choice((0, 0.1))
        self.rows = random.choice((2, 4, 1 << p.row_bits))

    def draw(self, random: Random) -> dict[str, int]:
        n = self.p.line_bytes
        first = random.randrange(n)
        mask = (1 << n) - 1 if random.random() < self.whole else ((1 << random.randint(1, n - first)) - 1) << first
        pins = {"valid": int(random.random() < self.load), "peer": random.randrange(self.p.peers), "line": random.randrange(2), "mask": mask}
        pins |= {"row": random.randrange(self.rows), "low": int(random.random() < 0.2), "data": random.getrandbits(n * self.p.byte_bits)}
        pins |= {"timer": self.timer, "fence": int(random.random() < self.fences), "out_ready": int(random.random() >= self.stall)}
        return pins | {"peer_ready": sum(int(random.random() >= self.stall) << i for i in range(self.p.peers))}

    def cycle(self, pins: Values) -> Values:
        before = state = replace(self.state, draining=bool(pins["fence"]))
        out, packet = dict(self.out), None
        if not out["out_valid"] or pins["out_ready"]:
            state, packet = rpm.send(before, tuple(bool(pins["peer_ready"] >> i & 1) for i in range(self.p.peers)))
            self.out = {"out_valid": 0}
        if packet:
            self._sent(packet, before)
        tag, partition = ((pins["line"], pins["row"]), bool(pins["low"])), before.partitions[pins["peer"]]
        merges = tag in state.partitions[pins["peer"]]
        ready = merges or len(partition) < self.p.entries
        if pins["valid"]:
            self.seen["merge" if merges else "new line" if ready else "no room"] += 1
        if pins["valid"] and ready:
            for i in range(self.p.line_bytes):
                if pins["mask"] >> i & 1:
                    value = bytes([pins["data"] >> i * self.p.byte_bits & (1 << self.p.byte_bits) - 1]) * self.width
                    state, _ = rpm.write(state, rpm.Write(pins["peer"], tag[0], pins["row"], i * self.width, value, tag[1]))
        self.state = rpm.tick(state)
        return out | {"ready": int(ready)}

    def _sent(self, packet: rpm.Packet, state: rpm.RpmState) -> None:
        entry = state.partitions[packet.peer][packet.line, packet.low]
        why = "stale" if state.now - entry.since >= self.timer else "whole" if packet.mask == rpm.ALL else "fence" if state.draining else "crowded"
        self.seen[f"sent {why}"] += 1
        valid = [packet.mask >> i * self.width & 1 for i in range(self.p.line_bytes)]
        assert isinstance(packet.line, tuple)
        self.out = {"out_valid": 1, "out_peer": packet.peer, "out_line": packet.line[0], "out_row": packet.row, "out_low": int(packet.low)}
        self.out["out_mask"] = sum(bit << i for i, bit in enumerate(valid))
        self.out["out_data"] = sum(packet.data[i * self.width] << i * self.p.byte_bits for i, bit in enumerate(valid) if bit)


BLOCK = Block(
    "packet-manager", "stores merge to lines per peer; the scheduler", PacketParameters, PacketManager, PacketModel,
    small=(PacketParameters(1, 3, 2, 1, 3, 4, 8), PacketParameters(2, 2, 4, 1, 3, 4, 4), PacketParameters(3, 4, 2, 2, 4, 5, 2)),
)  # fmt: skip
