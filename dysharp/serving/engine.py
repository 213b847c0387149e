"""`Engine`: the rules by which a serving engine puts prompts and decoding requests into steps, and what its host costs."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dysharp.base import MiB, Texts, entry_of, frozen, read_toml, show
from dysharp.costs import Machine, Reducers
from dysharp.costs.regime import regime_of
from dysharp.model import Formats
from dysharp.serving.work import Replica
from dysharp.specs import Cluster, WholeModel
from dysharp.specs.fields import Text, Tokens, check_fields

FILE = Path(__file__).parent / "data" / "engines.toml"
Count = Annotated[float, Field(strict=True, ge=0, le=100)]
Part = Annotated[float, Field(strict=True, gt=0, le=1)]
MOST_OWN = 8 * MiB
"""Bytes up to which engines take their own all-reduce (vLLM, SGLang: custom_all_reduce; TensorRT-LLM: its workspace)."""
MOST_IN_SWITCH = 64 * MiB
"""Buffer of vLLM's multimem all-reduce for eight GPUs of Hopper (all_reduce_utils.py; 128 MiB on Blackwell)."""
OVERLAPPED = 1.0
"""Steps by which a first token is late where the host handles a step's tokens beside the next one (SGLang, TensorRT-LLM: overlap schedulers)."""
TOKEN_US = 1.3
"""Text of prose (vllm PR #19334: 100 prompts of 10,000 tokens, one after the other, in 1.34 s)."""
GRAPH_BATCHES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Numbers of tokens for which engines capture decode graphs (vLLM config/compilation.py; SGLang alike)."""


@frozen
class Engine:
    """Rules of one engine. Raises `ConfigError` for an invalid value."""

    name: str
    mixed: bool
    """Tokens of prompts join a step of decoding requests. Else a step has prompts alone, and decoding requests wait."""
    step_tokens: Tokens
    """Most tokens of a step with prompts."""
    most_requests: Tokens
    reserved: Annotated[float, Field(strict=True, ge=0, le=1)]
    """Part of the tokens that running requests still want, which a new one must leave free."""
    memory_part: Part
    """Part of the memory that weights, KV and activations share; of what weights leave free if `of_free`."""
    of_free: bool
    kv: Text
    """Type of cached values for FP8 and FP4 checkpoints (`cached`)."""
    overlaps: bool
    """The host prepares the next step while the GPU works on this one."""
    polled_steps: Count
    """Steps from one look for new requests to the next; 1: the engine looks after every step."""
    gathered_steps: int
    """Steps that prompts wait for prompts of the other attention groups; 0: they do not wait."""
    groups_share_tokens: bool
    """`step_tokens` counts the tokens of all attention groups, and each group has its part."""
    all_reduce: Texts
    """Its kernels up to `MOST_OWN` bytes."""
    in_switch: Text
    """Its kernel that sums in the switch; "": none."""
    nvls: bool
    """Whether NCCL may sum in the switch."""
    launch: Text
    """Constant: host time of a kernel of a step with prompts, where no piecewise graph has it."""
    ep_kernels: int
    """Kernels of a layer whose experts EP spreads over one attention group, beside those of experts that are cut."""
    fused_experts: Texts
    """Formats of experts that are one chain on Blackwell: one kernel chooses them, and the first product activates (TensorRT-LLM's generated
    kernels)."""
    early: bool
    """Kernels of a graph start while those before them drain (programmatic dependent launch)."""
    cdna3_dense: Text = ""
    """Library of block-scaled GEMMs on CDNA 3; "": Composable Kernel's."""
    fused_sums: bool = False
    """A small all-reduce and the norm behind it are one kernel on machines with one attention group and no stages (`layer.FUSED_SUM`)."""
    nvfp4_kv: Text = ""
    """`kv` of NVFP4 checkpoints, whose files say FP8; "": as of others."""
    blackwell_mxfp4: Text = "mxfp4"
    """Precision on Blackwell of checkpoints in MXFP4 that do not say in what they multiply."""
    sparse_kv: Text = ""
    """`kv` on Blackwell where an indexer chooses tokens; "": as of others."""
    blackwell_launch: Text = ""
    """`launch` on machines of Blackwell, whatever their hosts: rows of x86 hosts and of Grace say the same; "": as on others."""
    token_us: float = TOKEN_US
    """Time in which the one process that turns text into tokens makes a token."""
    ep_by_flag: bool = False
    """A flag names DeepEP's kernels, and none takes both."""
    answered: Annotated[int, Field(strict=True, ge=1)] = 1
    """Step of a disaggregated request whose token is the first that a client sees. TensorRT-LLM's decode worker passes over the first token and
    answers once in `stream_interval` steps (_torch/pyexecutor/py_executor.py, _handle_responses)."""
    blocks_without_ep: bool = False
    """Experts in FP8 with scales of blocks have TensorRT-LLM's kernel on Blackwell where no EP kernels move rows (SGLang server_args.py:
    flashinfer_trtllm)."""
    piecewise: bool = False
    """Graphs have the kernels of prompts where `_piecewise` says so."""
    cdna3_casts: bool = False
    """It casts the absorbed weights of FP8 checkpoints in every step on CDNA 3, and fuses no positions there."""

    def __post_init__(self) -> None:
        check_fields(self, f"engine {show(self.name)}")

    def cached(self, formats: Formats, model: WholeModel, arch: str) -> str:
        """Type of cached values for a checkpoint of `model` in `formats` on a GPU."""
        own = self.sparse_kv * (arch == "blackwell" and model.attention.index_heads > 0) or self.nvfp4_kv * ("nvfp4" in formats.weights())
        return own or (self.kv if formats.narrow else "bf16")

    @property
    def reducers(self) -> Reducers:
        """Its all-reduce kernels."""
        return Reducers(self.all_reduce, MOST_OWN, self.in_switch, MOST_IN_SWITCH if self.in_switch else 0.0, self.nvls)

    def runs(self, replica: Replica) -> Replica:
        """The replica with its kernels."""
        blackwell, experts = replica.machine.arch == "blackwell", replica.formats.experts
        fused = blackwell and experts in self.fused_experts
        generated = fused or (blackwell and experts == "fp8-block" and self.blocks_without_ep and min(replica.layout.ep, replica.layout.dp) == 1)
        machine = replica.machine
        cdna3 = bool(machine.cluster.gpu) and machine.gpu.arch == "cdna3"
        if generated:
            kind, widens = "trtllm-gen-blocks" if experts == "fp8-block" else "trtllm-gen", experts == "mxfp4" and replica.model.layer is not None
            machine = _running(machine.cluster, grouped=kind, narrow=kind if widens else machine.regime.narrow)
        elif cdna3 and self.cdna3_dense:
            machine = _running(machine.cluster, dense=self.cdna3_dense)
        return replace(replica, machine=machine, reducers=self.reducers, ep_kernels=self.ep_kernels, fused_experts=fused, early=self.early,
                       fused_sums=self.fused_sums, casts_absorbed=cdna3 and self.cdna3_casts)  # fmt: skip

    def beside(self, groups: int) -> Engine:
        """The rules of one of `groups` attention groups."""
        return replace(self, step_tokens=max(1, self.step_tokens // groups)) if self.groups_share_tokens else self

    def together(self, groups: int) -> Engine:
        """The rules of all `groups` attention groups, from those of one."""
        return replace(self, step_tokens=self.step_tokens * groups) if self.groups_share_tokens else self

    def host_us(self, replica: Replica, requests: float) -> float:
        """The host's work on a step of `requests` requests of an attention group."""
        return _on_host(replica, "serving.request_us", requests)

    def step_us(self, replica: Replica, device: float, requests: float, launches: int = 0, tokens: float = 0.0) -> float:
        """Time from step to step. A decode step replays a graph; a step with `tokens` of prompts has `launches` kernels that the host launches.

        The host's work on `requests` requests runs beside the GPU if the engine overlaps it, else before the step.
        """
        launched, host = self._launched_us(replica, launches, tokens), self.host_us(replica, requests)
        busy = max(device, launched, host) if self.overlaps else max(device, launched) + host
        return busy + _on_host(replica, "serving.step_us")

    def _launched_us(self, replica: Replica, launches: float, tokens: float) -> float:
        graphs = self.piecewise and _piecewise(replica, tokens)
        if self.blackwell_launch and replica.machine.arch == "blackwell" and not graphs:
            return launches * replica.machine.constants[self.blackwell_launch]
        return _on_host(replica, "serving.launch_us" if graphs else self.launch, launches)

    def first_us(self, replica: Replica, decode: float, step: float = 0.0) -> float:
        """Time of a request outside its own steps: the next look for requests, steps that are scheduled already, the first token on its way.

        `decode`: a step of decoding requests, between which the engine looks. `step`: the mean step of a run, some of which have prompts.
        """
        constants = replica.machine.constants
        scheduled = constants.get(f"serving.{self.name}_first_steps", OVERLAPPED) * max(decode, step)
        return constants.get(f"serving.{self.name}_first_us", 0.0) + scheduled + (self.polled_steps - 1) / 2 * decode

    def padded(self, tokens: float) -> float:
        """Tokens that a graph of decoding requests computes."""
        return next((float(size) for size in GRAPH_BATCHES if size >= tokens), tokens)


def _piecewise(replica: Replica, tokens: float) -> bool:
    """Whether SGLang has a graph of a step with `tokens` of prompts (docs/advanced_features/piecewise_cuda_graph.md: of MLA up to 2048 tokens, else
    of whole steps; none on AMD, with attention groups or stages)."""
    cdna, layout = replica.machine.cluster.gpu and replica.machine.gpu.arch.startswith("cdna"), replica.layout
    return layout.dp == layout.pp == 1 and not cdna and (tokens <= 2048 or not replica.model.attention.mla)


def _on_host(replica: Replica, constant: str, times: float = 1.0) -> float:
    """A constant of a DGX's host, `times` times, on the hosts of the replica."""
    return replica.machine.cluster.host_factor * times * replica.machine.constants[constant]


@functools.lru_cache(maxsize=64)
def _running(cluster: Cluster, **libraries: str) -> Machine:
    """The machine with other `libraries` of GEMMs, as `Regime` names them."""
    return Machine(cluster, replace(regime_of("serving"), **libraries))  # type: ignore[arg-type]


@functools.cache
def _engines() -> dict[str, Engine]:
    table = read_toml(FILE)
    lists = ("all_reduce", "fused_experts")
    return {name: Engine(name=name, **(values | {key: tuple(values[key]) for key in lists})) for name, values in table.items()}


def engine_of(name: str) -> Engine:
    """An engine by name. Raises `ConfigError` with the nearest name."""
    return entry_of(name, _engines(), f"engine {show(name)}: unknown")
