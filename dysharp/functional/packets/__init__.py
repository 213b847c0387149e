"""The packet path: LSUs, switches, hubs and trackers that exchange packed packets."""

from dysharp.functional.faults import Faults
from dataclasses import dataclass, field

@dataclass
class Statistics:
    packets: dict = field(default_factory=dict)
    flits: dict = field(default_factory=dict)
    tables: dict = field(default_factory=dict)
    injected: dict = field(default_factory=dict)
    dump: tuple = ()

def run_packets(*a, **k):
    raise NotImplementedError
