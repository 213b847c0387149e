"""What the tables of the modelled hardware take on a chip."""

from dysharp.silicon.area import DYSHARP_TABLES, HUB_TABLES, dysharp_area, hub_area

__all__ = ["DYSHARP_TABLES", "HUB_TABLES", "dysharp_area", "hub_area"]
