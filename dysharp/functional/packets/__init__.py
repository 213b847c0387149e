"""The packet path: a Program drives the network of LSUs, switches, hubs and trackers."""

from dysharp.functional.network.statistics import Statistics
from dysharp.functional.packets.driver import run_packets
