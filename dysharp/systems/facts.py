"""What a system is given (`Layer`) and what it says about itself, as values. An ablation is `dataclasses.replace` of the facts of its system."""

from collections.abc import Callable, Mapping
from typing import Any

from dysharp.base import AnyMapping, Numbers, Texts, frozen, frozen_keywords
from dysharp.specs import Cluster, Model, load_gpu
from dysharp.workload import Routing, Scheme

Serves = Callable[[Routing, Any], Routing]
PHASES = ("decode", "prefill", "train")
"""Phases of a model's life for which software has kernels. "train" needs backward kernels."""
OTHER_COLOUR = "#44AA99"
"""Plot colour of every system that declares none."""
BOTH_FORMS = ("paper", "real")
SUMS = "it multicasts and adds rows there"
"""`Reach.switch` of systems that multicast and add rows in the switch."""
FUSED_GEMMS = "fused"
"""The option `gemms` of systems in which a fused kernel computes the GEMMs begins with this word."""


HOPPER_ON = ("hopper", "blackwell")
AMPERE_ON = ("ampere", "ada", *HOPPER_ON)
"""`Ships.archs`: NVIDIA's GPUs from one on."""
BY_TYPE: Mapping[str, Mapping[str, str]] = {"fp8": {"dispatch": "fp8"}, "bf16": {"dispatch": "rows"}}
"""`Ships.formats` of kernels that send rows in the type of the GEMMs."""
ANY_TYPE: Mapping[str, Mapping[str, str]] = {"fp8": {}, "bf16": {}}
"""`Ships.formats` of kernels without an option for it."""


@frozen
class Form:
    """The option of systems with a real form."""

    form: str = "auto"


@frozen
class Layer:
    """One pass of a layer, which a system plans. `direction`: "fwd" or "bwd"."""

    model: Model
    cluster: Cluster
    routing: Routing
    direction: str


@frozen
class Moves:
    """What a system moves."""

    sent: Scheme
    """Dispatch's rows: the name of a closed form of `workload.traffic`, or a function (routing, options) -> token rows up and down a GPU."""
    back: Scheme | None = None
    """Combine's rows where Combine does not mirror Dispatch. None: it does."""
    between: str = ""
    """Dispatch's rows by network over several NVLink domains (`workload.levels.LEVELS`). "": one row per expert, on the layer's own way."""
    formats: Texts = ("rows",)
    """Values that the option `dispatch` accepts."""
    results: Texts = ("rows",)
    """Values that the option `combine` accepts."""
    serves: Serves | None = None
    """A function (routing, options) -> the Routing that the system serves: without the choices that a capacity drops,
    with expert slots in parts. A second application changes nothing. None: the Routing as it is."""


@frozen_keywords
class Costs:
    """What the time of a layer has beside communication and GEMMs."""

    permutes: int
    """Permutations per pass that the plan function does not add itself. A permutation sorts rows by expert and puts them back.

    Real forms add them as ops (`building/experts.py`); other Programs on hw clusters are charged after the run.
    0: the system writes rows in place, or its Program contains the permutation.
    """
    fused: bool
    """True: one kernel is the whole layer, so there is no activation, cast or launch beside it."""
    gemms: Texts = ()
    """Values of the option `gemms` among which "auto" chooses on an hw cluster. (): the system has no such option."""
    sms: Callable[[Model, Cluster], int] | None = None
    """SMs of the communication kernels where the option `n_sm` is 0. None: the option is their number."""
    drops: str = ""
    """Parts of the software or hardware that the paper form leaves out."""
    by_size: bool = False
    """True: the real form chooses protocols by the size of a call (NCCL), so few tokens do not tell the time of many (`runs.known`)."""


@frozen_keywords
class Reach:
    """Where a system runs. Tuples name forms, "paper" or "real"; a form that is not named is refused there."""

    domains: Texts = ()
    """Forms that run on several NVLink domains."""
    most: int = 0
    """NVLink domains that the kernels of the real form can serve. 0: any number."""
    stays: str = ""
    """Why the system stays inside one NVLink domain, for the error text; "" = no reason is known."""
    assumes: str = ""
    """What the system assumes between domains and no measured machine has; "" = nothing. A warning of every Row over domains."""
    no_switch: Texts = ()
    """Forms that run on a fabric without a switch (`Cluster.n_switches` 0)."""
    switch: str = ""
    """What the system does in the switch; "" = nothing. Printed where a fabric has none."""
    by_name: Texts = ()
    """Forms that run over several NVLink domains only where somebody names the system (a comment says why)."""

    def runs_on(self, cluster: Cluster, form: str) -> bool:
        """Whether `form` runs on the domains of `cluster`, and without a switch where it has none."""
        near = cluster.domains == 1 or form in self.domains
        few = form == "paper" or not self.most or cluster.domains <= self.most
        return near and few and (cluster.n_switches > 0 or form in self.no_switch)

    def only_by_name(self, cluster: Cluster, form: str) -> bool:
        """Whether `form` runs on `cluster` only where somebody names it. Few systems run without a switch, so each of them is usual there."""
        usual = not cluster.n_switches and form in self.no_switch
        return cluster.domains > 1 and form in self.by_name and not usual


@frozen
class Change:
    """A change of software or hardware that `advise` tries. The declaring system has the change built in."""

    name: str
    assumes: str
    rank: int
    """Place in the list of changes: the smallest change has the smallest rank."""


@frozen
class Shown:
    """How plots and advice show a system."""

    colour: str = OTHER_COLOUR
    """Plot colour, "#RRGGBB"."""
    change: Change | None = None
    """The what-if of `advise` that the system stands for."""


@frozen
class Ships:
    """The GPUs and models on which the released software of a system runs.

    A field with its default restricts nothing, because the source does not mention it.
    """

    source: str
    archs: Texts
    """Architectures of GPUs (`Gpu.arch`)."""
    formats: Mapping[str, Mapping[str, str]]
    """GEMM type of a model -> the options with which the system usually runs models of this type.

    For other types the software has no kernels.
    """
    hidden: Numbers = ()
    """Hidden sizes for which the release has kernels; () = any."""
    step: int = 1
    """The hidden size must be a multiple of this number."""
    expert_step: int = 1
    """The hidden size of an expert must be a multiple of this number."""
    gated: bool = False
    """True: the software runs gated experts only."""
    phases: Texts = PHASES
    """Phases for which the release has kernels (`PHASES`)."""
    phases_source: str = ""
    """Source of `phases`; "" where the software has kernels for all."""

    def lacks(self, phase: str) -> str:
        """Why the software does not run a phase; "": the software runs."""
        if phase in self.phases:
            return ""
        return f"no {'backward kernels' if phase == 'train' else f'kernels for {phase}'} ({self.phases_source})"

    def why_not(self, model: Model, cluster: Cluster) -> str:
        """Why the software does not run this model on this cluster; "": the software runs."""
        arch = load_gpu(cluster.gpu).arch
        reasons = [
            (arch not in self.archs, f"on {arch}, expected {' or '.join(self.archs)}"),
            (model.gemm_dtype not in self.formats, f"for {model.gemm_dtype} models, expected {' or '.join(self.formats)}"),
            (bool(self.hidden) and model.hidden not in self.hidden, f"for hidden {model.hidden}, expected {', '.join(map(str, self.hidden))}"),
            (model.hidden % self.step > 0, f"for hidden {model.hidden}, expected a multiple of {self.step}"),
            (model.expert_hidden % self.expert_step > 0, f"for experts of {model.expert_hidden}, expected a multiple of {self.expert_step}"),
            (self.gated and not model.gated, "for ungated experts, expected three matrices"),
        ]
        return next((f"no kernel {text} ({self.source})" for wrong, text in reasons if wrong), "")


@frozen_keywords
class Facts:
    """All that other folders read about a system and that its Program does not say."""

    source: str
    options: type
    """A frozen dataclass; every field has a default."""
    moves: Moves
    costs: Costs
    reach: Reach = Reach()
    shown: Shown = Shown()
    ships: Ships | None = None
    """GPUs and models on which the released software runs. None: not known."""
    today: bool | None = None
    """Whether the software runs on machines that one can buy. None: where the system has a real form."""
    inert: Texts = ()
    """Options of its class that change nothing in this system, and are refused."""
    bound: bool = False
    """True: a lower bound, which nobody can build."""
    sums_in_order: bool = False
    """True: the system promises that the rows of a token are added in the order of their GPUs and expert slots, so that runs agree bit for bit."""
    peels: str = ""
    """Why ops of one template wait for each other. The verifier then checks op by op. "": the ops do not wait."""

    def is_one_kernel(self, options: AnyMapping) -> bool:
        """Whether one kernel is the whole layer with these `options`."""
        return self.costs.fused or str(options.get("gemms")).startswith(FUSED_GEMMS)
