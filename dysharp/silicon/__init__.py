"""What the tables of the modelled hardware take on a chip. Names load when first used, so that a list of blocks stays fast."""

from typing import TYPE_CHECKING

from dysharp.base import late_names, loader

if TYPE_CHECKING:
    from dysharp.silicon.area import DYSHARP_TABLES, HUB_TABLES, dysharp_area, hub_area

__all__ = [*late_names(__name__)]
__getattr__ = loader(__name__)
