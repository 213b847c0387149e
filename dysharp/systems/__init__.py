"""One short file per system. `registry` finds the systems; `building` has what their plan functions are made of."""

from dysharp.systems.facts import AMPERE_ON, BOTH_FORMS, BY_TYPE, HOPPER_ON, SUMS, Change, Costs, Facts, Form, Layer, Moves, Reach, Ships, Shown
from dysharp.systems.registry import System, all_systems, find_system, get_system, is_real, kernels, system
