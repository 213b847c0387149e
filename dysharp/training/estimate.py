"""`estimate`: the time of a training step of a layout in milliseconds of computing, with every part a closed form. Pure.

A replay of a few micro-batches is enough: once the pipeline is full, each further group of micro-batches takes the same time.
"""

from dysharp.base.units import PS_PER_US
from dysharp.base.values import frozen
from dysharp.costs.machine import Machine
from dysharp.model.layout import Layout
from dysharp.specs.whole import WholeModel
from dysharp.training.costs import StepCosts, step_costs
from dysharp.training.graph import replay, step_graph
from dysharp.training.recipe import TrainingRecipe
from dysharp.training.schedules import make_schedule, usual_schedule

FULL_AT = 3
"""Groups of micro-batches after which a pipeline is in its steady state; two more give the time of one."""


@frozen
class Estimate:
    """A step. `slope_us`: one more micro-batch. `costs`: the stages, by part."""

    step_us: float
    slope_us: float
    tokens_per_s_gpu: float
    costs: StepCosts

    @property
    def intercept_us(self) -> float:
        """The step without its micro-batches: bubble, traffic of gradients and parameters, optimizer."""
        return self.step_us - self.slope_us * self.costs.layout.micro_batches

    def parts(self) -> dict[str, float]:
        """Microseconds of the slowest pipeline rank's work by part, over the step."""
        layout = self.costs.layout
        ranks = [self.costs.stages[rank :: layout.pp] for rank in range(layout.pp)]
        slowest = max(ranks, key=lambda own: sum(one.forward + one.backward + one.weights for one in own))
        names = dict.fromkeys(name for one in slowest for name in one.parts)
        return {name: layout.micro_batches * sum(one.parts.get(name, 0.0) for one in slowest) for name in names}


def estimate(model: WholeModel, machine: Machine, layout: Layout, sequence: int, training_recipe: TrainingRecipe, schedule: str = "") -> Estimate:
    """The step of `model` on `machine`. `schedule`: default 1f1b, interleaved with several chunks. Raises ConfigError for what is not modelled."""
    costs = step_costs(model, machine, layout, sequence, None, training_recipe=training_recipe)
    name = schedule or usual_schedule(layout.vpp)
    m, group = layout.micro_batches, layout.pp
    few = FULL_AT * group + m % group

    def step(n: int) -> float:
        return replay(step_graph(make_schedule(name, layout.pp, n, layout.vpp), costs.times)).makespan / PS_PER_US

    if m > few + group:
        first, second = step(few), step(few + group)
        slope = (second - first) / group
        total = first + slope * (m - few)
    else:
        total = step(m)
        slope = (total - step(m - group)) / group if m > group else total / m
    return Estimate(total, slope, layout.global_batch * sequence / (total / 1e6) / layout.gpus, costs)
