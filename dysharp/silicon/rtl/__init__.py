"""Blocks of hardware in Amaranth (extra "rtl"), each with a cycle-exact model on `protocol/`. What they share loads when first used."""

from typing import TYPE_CHECKING

from dysharp.base import loader

if TYPE_CHECKING:
    from dysharp.silicon.rtl.blocks import Block
    from dysharp.silicon.rtl.check import BlockModel, SpillModel, Values
    from dysharp.silicon.rtl.formal import OrderProof, Proof, WatchedList, live_slots, slots
    from dysharp.silicon.rtl.parts import Cam, Machine, OrderList, Table, check_slots, drive, lowest, memory, slot_bits, wire

__getattr__ = loader(__name__)
