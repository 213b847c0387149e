"""The packet path: LSUs, switches, hubs and trackers that exchange packed packets."""

from dysharp.functional.network.statistics import Statistics
from dysharp.functional.packets.machine import run_packets

__all__ = ["Statistics", "run_packets"]
