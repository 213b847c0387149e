"""Random hardware and framings. Events of different kinds often fall on one picosecond."""

from copy import deepcopy

import numpy as np

from dysharp.isa.framing import Framing
from dysharp.program.tables import Hardware, Net

# Bytes per microsecond: 1 B = 1 ps and 2 ps (ties), 450 GB/s, and rates that do not divide.
RATES = (1_000_000, 500_000, 450_000, 333_333, 777_777)


def chance(rng: np.random.Generator, p: float) -> bool:
    """True with probability `p`."""
    return bool(rng.random() < p)


def random_framings(rng: np.random.Generator, n: int) -> list[Framing]:
    """`n` framings, with and without acknowledgements, target lists and explicit addresses."""
    return [
        Framing(
            name=f"framing{i}",
            payload_bytes=int(rng.choice((64, 128, 256))),
            header=int(rng.choice((1, 1, 2))),
            targets_per_ext=int(rng.choice((0, 8, 2))),
            address_per_target=int(rng.choice((0, 0, 1))),
            ack=int(rng.choice((0, 1, 1))),
            source_ack=int(rng.choice((0, 1, 1))),
            source_ack_per_target=int(rng.choice((0, 0, 1))),
        )
        for i in range(n)
    ]


def random_hardware(rng: np.random.Generator, payload_bytes: int) -> Hardware:
    """Hardware for trains of about `payload_bytes`.

    Latencies are multiples of a train's time. The smallest buffers hold less than one train.
    """
    rate = int(rng.choice(RATES))
    train_bytes = payload_bytes * 9 // 8
    train_ps = -(-train_bytes * 1_000_000 // rate)
    lat = int(rng.choice((train_ps, 2 * train_ps, 5 * train_ps, 997)))
    turns = deepcopy(rng).spawn(9)[8]  # of a copy, which counts no child of `rng`: the other draws of a seed stay
    buffers = (0, train_bytes // 2, train_bytes, 2 * train_bytes, 3 * train_bytes + 7, 8 * train_bytes)
    return Hardware(
        rate=rate,
        lat=lat,
        ack=int(rng.choice((lat, 2 * lat, 2 * lat + 1))),
        notify=int(rng.choice((lat, 2 * lat, 0))),
        responder=int(rng.choice((lat, train_ps, 0))),
        local=int(rng.choice((lat, train_ps, 0))),
        n_vcs=int(rng.integers(1, 4)),
        vc_bytes=int(rng.choice(buffers)),
        n_links=int(rng.choice((1, 4, 18))),
        notify_bytes=int(rng.choice((0, 16, 32))),
        memory_rate=int(rng.spawn(1)[0].choice((0, 0, rate // 3, rate, 5 * rate))),
        ack_turns=chance(turns, 0.6),
        hashed_links=chance(turns, 0.6),
    )


def random_nets(rng: np.random.Generator, hardware: Hardware, n_nodes: int) -> tuple[Net, ...]:
    """Up to two networks besides NVLink, with rates, hops and costs of messages that often meet those of NVLink."""
    return tuple(_net(rng, f"net{i}", hardware, n_nodes) for i in range(int(rng.choice((0, 0, 1, 1, 2)))))


def _net(rng: np.random.Generator, name: str, m: Hardware, n_nodes: int) -> Net:
    rate = int(rng.choice((m.rate, *RATES)))
    slow = tuple(int(r) for r in rng.choice((rate, rate // 3), n_nodes)) if chance(rng, 0.4) else ()
    lat = int(rng.choice((m.lat, 3 * m.lat, 997)))
    return Net(name, rate, lat, int(rng.choice((lat, 2 * lat, m.ack))), int(rng.choice((0, 0, m.lat, 1500))), rates=slow)
