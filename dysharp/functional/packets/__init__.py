"""The packet path: LSUs, switches, hubs and trackers that exchange packed packets."""

from dysharp.functional.packets.machine import run_packets
from dysharp.functional.packets.statistics import Statistics

__all__ = ["Statistics", "run_packets"]
