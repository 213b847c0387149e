"""Training steps of whole models: memory, schedules, costs, times. See README.md in this folder."""

from typing import TYPE_CHECKING

from dysharp.base import loader

if TYPE_CHECKING:
    from dysharp.training.answers import BUBBLE, DATA_PARALLEL, EP, LAUNCHES, NO_EP, NO_LAUNCHES, Energy, StepSplit, Waits, gains, peak_flops_per_us
    from dysharp.training.block import NOT_MODELLED, Block
    from dysharp.training.cost import BlockTimes, EpTimes, PassCost
    from dysharp.training.costs import Kind, StepCosts, beside, beside_pass, exchanged_us, late_sends, moe_kinds, n_buckets, step_costs, update_us
    from dysharp.training.graph import COMPUTE, OPTIMIZER, SEND, Replay, replay, replay_schedule, slot_name, step_graph
    from dysharp.training.memory import CAP, CAP_LINE, DISPATCHERS, FULL, RESERVED, Saving, TrainingMemory, buffer_bytes, check_memory, memory_of
    from dysharp.training.moe_block import ELEMENT, LOADED, NO_RECIPE, Basis, exchange, expert_tensor, routed, routed_rows
    from dysharp.training.overlap import WIRE, Phases, pairs_time, phases_of
    from dysharp.training.recipe import GRAPH_PARTS, SINGLE, SMS, WHOLE, Dispatcher, DType, TrainingRecipe
    from dysharp.training.schedules import Schedule, Slot, Times, equal_times, get_schedule, in_flight, make_schedule, usual_schedule
    from dysharp.training.wires import WireTimes, beyond, send

__getattr__ = loader(__name__)
