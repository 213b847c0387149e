"""Rows that an instruction of the packet path may name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.functional.packets.instructions import Decoder


def test_only_rows_of_expert_regions_are_listed() -> None:
    """Rows 0 and 1 lie in experts' regions with slots 5 and 3, row 2 in another region."""
    program = SimpleNamespace(templates=[SimpleNamespace(name="send")], ops=SimpleNamespace(template=np.zeros(1, int)))
    layout = SimpleNamespace(region=[0, 1, 2], slot_of_region={0: 5, 1: 3})
    made: Any = SimpleNamespace(p=program, layout=layout, rows=lambda member: [member])
    slots = Decoder._slots
    assert slots(made, 0, [0, 1]) == (3, 5)
    with pytest.raises(ConfigError, match=r"op 0 \(send\): found row 2 in its target list, expected rows of regions \"expert\""):
        slots(made, 0, [0, 2])
