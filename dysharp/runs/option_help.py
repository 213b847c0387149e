"""What each option means, which values an option takes, and where it has an effect; a warning for an option without effect."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dysharp.runs.options import STEPS, option_choices
from dysharp.specs import Choice, Cluster
from dysharp.systems import System, is_real
from dysharp.systems.building.formats import SIDES, WEIGHT_FORMATS
from dysharp.systems.registry import FORMS

EVERYWHERE, REAL_FORM, PAPER_FORM = "everywhere", "real form", "paper form"
"""Where an option has an effect. Real form: on hw-* clusters, unless `form=paper`."""
TRUTH = "true, false"
WINDOW = "tokens of one source GPU that may be in {} at once; 0: as many as keep the links busy and fit the tables"
ROWS = "format of token rows in Dispatch; rows: the model's own type"

FIELDS: dict[str, tuple[str, str]] = {  # option -> (meaning, where it has an effect)
    "form": ("software costs; paper: none; real: costs of the released kernels; auto: real on hw-* clusters", EVERYWHERE),
    "n_sm": ("SMs of the communication kernels", REAL_FORM),
    "chunk": ("neighbouring tokens that one SM takes at a time", REAL_FORM),
    "permute": ("the kernels sort rows by expert; false: rows keep their order", REAL_FORM),
    "buffer_tokens": ("tokens of a GPU for which the buffers have room; 0: those of the layer", REAL_FORM),
    "combine_chunk": ("tokens that an SM of Combine takes at a time", REAL_FORM),
    "sides": ("one: the sender writes into the memory of the receiver; two: sender and receiver take part", REAL_FORM),
    "cast": ("the input is quantised before the kernel", REAL_FORM),
    "peers": ("how rows travel inside an NVLink domain; nvlink: as stores; nic: through NICs, as to other domains", EVERYWHERE),
    "pxn": (
        "rows to another rail and domain; true: they leave by the GPU on the receiver's rail, as in NCCL; false: by the sender's NIC",
        EVERYWHERE,
    ),
    "dispatch": (ROWS, EVERYWHERE),
    "combine": ("format of the experts' results in Combine; rows: the model's own type", EVERYWHERE),
    "weights": ("format of the experts' weights; model: the type of the model's GEMMs", EVERYWHERE),
    "gemms": ("GEMMs of a library, or of a fused kernel; auto: the faster of both on hw-* clusters, else library", EVERYWHERE),
    "compute": ("false leaves the GEMMs out: communication alone", EVERYWHERE),
    "dispatch_window": (WINDOW.format("Dispatch"), EVERYWHERE),
    "combine_window": (WINDOW.format("Combine"), EVERYWHERE),
    "al_misses": ("misses of a hub's table under way at once; 0: as many as rows at line rate need", EVERYWHERE),
    "column_blocks": ("thread blocks that share the columns of a row tile", EVERYWHERE),
    "tile_rows": ("rows of a tile of the fused kernels", EVERYWHERE),
    "capacity": ("rows that a GPU may send to an expert, in percent of the mean; more are dropped; 0: as many as needed", EVERYWHERE),
    "a2a": ("all-to-all over several NVLink domains; linear: NCCL's, by rails; 2dh: level by level", EVERYWHERE),
    "degree": ("chunks of the capacity that are pipelined; 1: no overlap", EVERYWHERE),
    "group": ("GPUs of a group of peers", EVERYWHERE),
    "mediation": ("true: charges software before the first byte: counting and sorting rows, the wait of the host (choices mediation.*)", PAPER_FORM),
    "copies": ("rows of a token in Dispatch: one for each expert; gpu: one for each distinct GPU, an ablation", PAPER_FORM),
    "shadow": ("a hot expert is copied to all GPUs if the fullest expert then has fewer rows by more than this number; 0: no copies", PAPER_FORM),
    "store_bytes": ("payload of a packet without packet manager (mh-base, mh-dep)", EVERYWHERE),
    "poll_ns": ("time until a thread block sees that its tile is ready (mh-base, mh-pkt)", EVERYWHERE),
    "rows_at_once": ("rows that the SMs of a GPU write side by side; 1: each row leaves whole", EVERYWHERE),
    "rat_banks": ("banks of the row table (RAT) of a GPU's hub; each row belongs to one bank", EVERYWHERE),
    "rat_bank_entries": ("rows in a bank of the row table (RAT); a full bank spills its oldest row to memory", EVERYWHERE),
    "reduction": ("sums through the switch: the source of a token pulls them, or the GPUs of its experts push contributions to them", EVERYWHERE),
    "sum_places": ("sums of one source that the switch holds at once (reduction=push); contributions to further sums pass one by one", EVERYWHERE),
    "totals": ("when the hub (moe-hub, mh-dep) knows the rows of an expert: known: before; announced: after the last row of each source", EVERYWHERE),
    "grid": ("order in which polling thread blocks take SMs: expert after expert, or experts in turn", EVERYWHERE),
    "second_gemm": ("what GEMM-2 of a tile waits for: its own tile of GEMM-1, or the whole kernel; auto: as the hardware allows", EVERYWHERE),
    "zero_copy": ("the experts write their results where Combine sends them from; false: Combine copies them there", REAL_FORM),
    "n_comm": ("SMs that return results while GEMM-2 runs on the others", EVERYWHERE),
    "slices": ("slices of columns in which GEMM-2 is computed and returned; 1: a sum leaves when its own tiles have ended", EVERYWHERE),
    "blocks_per_sm": ("thread blocks that an SM holds; one computes while another one waits for its rows", EVERYWHERE),
}
VALUES: dict[str, str] = {  # of options that are the same in every system
    "form": ", ".join(FORMS),
    "sides": ", ".join(SIDES),
    "weights": ", ".join(WEIGHT_FORMATS),
    "chunk": "1 token or more",
    "peers": "nvlink, nic",
    "buffer_tokens": "0; the tokens of a GPU or more",
    "combine_chunk": "1 token or more",
    "a2a": "linear, 2dh",
    "copies": "expert, gpu",
}
OF_SYSTEM: dict[str, str] = {"mori.combine": "rows; without zero_copy also fp8-plain", "trtllm-a2a.combine": "rows; with sides=two also nvfp4"}
FABRIC: dict[str, str] = {  # blocks of the packet level; stripe, acks, n_vcs and vc_flits at burst level, too: --set fabric.NAME=VALUE
    "n_planes": "switch chips between the GPUs",
    "speedup": "crossbar lanes into and out of a switch port",
    "stripe": "how packets choose links: rotating, even (the default at burst level), hash (packet level only)",
    "channels": "groups of virtual channels: two (requests, answers), class (one per traffic class), one",
    "cycle_ps": "time that dynamic routing and summing add, ps",
    "reduction_entries": "sums that a switch port holds at once; 0: no limit",
    "reduction_timeout_ps": "a sum leaves the table after this time without data, ps; 0: never",
    "al_entries": "entries of the AL TLB of a GPU; 0: no limit",
    "al_mshrs": "misses of an AL TLB under way at once; 0: no limit",
    "al_miss_ps": "time of one read of the AL Table from GPU memory, ps",
    "al_banks": "banks of the AL TLB; 0: no limit",
    "al_bank_ps": "time between two lookups of a bank, ps",
    "queue_entries": "entries of the MultimemQ of a GPU; 0: no limit",
    "fetch_ps": "time in which a target list is fetched, ps",
    "answer_entries": "requests per link whose answers have not left; 0: no limit",
    "n_vcs": "virtual channels per group",
    "vc_flits": "flits of a virtual channel; 0: no limit",
    "acks": "when a link takes acknowledgements and notifications; turns (the default at packet level): in turn with rows; first: before rows",
}


@dataclass(frozen=True, slots=True)
class OptionHelp:
    """One option of one system.

    `name`: "system.option". `value`: the default. `values`: the allowed values, as text. `effect`: `EVERYWHERE` or `REAL_FORM` or `PAPER_FORM`.
    `choice`: the choice that gives default and range, or None.
    """

    name: str
    value: Any
    values: str
    meaning: str
    effect: str
    choice: Choice | None


def options_help(system: System) -> list[OptionHelp]:
    """The options of a system, in the order of its declaration."""
    defaults = {f.name: f.default for f in dataclasses.fields(system.options)}
    choices = option_choices(system)
    done = []
    for field, default in defaults.items():
        meaning, effect = FIELDS.get(field, ("see the documentation of the system", EVERYWHERE))
        rule = choices[field]
        done.append(OptionHelp(f"{system.name}.{field}", default, _values(system, field, default, rule), meaning, effect, rule))
    return done


def _values(system: System, field: str, default: Any, rule: Choice | None) -> str:
    name = f"{system.name}.{field}"
    if rule is not None:
        return range_text(rule, STEPS.get(name, 1))
    if isinstance(default, bool):
        return TRUTH
    if field == "gemms":
        return ", ".join(("auto", *system.costs.gemms))
    if field in ("dispatch", "combine"):
        return OF_SYSTEM.get(name, ", ".join(system.moves.formats))
    return OF_SYSTEM.get(name, VALUES.get(field, "-"))


def range_text(rule: Choice, step: int = 1) -> str:
    """The range of a number with its unit, or the words."""
    if rule.alternatives:
        return ", ".join(rule.alternatives)
    automatic = "" if rule.automatic is None else f", or {rule.automatic}"
    return f"{rule.low} to {rule.high} {rule.unit}".rstrip() + automatic + (", an even number" if step == 2 else "")


def without_effect(system: System, options: Any, cluster: Cluster) -> Sequence[str]:
    """A warning for each option that differs from its default and changes nothing in this run."""
    if not system.has_real_form:
        return ()
    real = is_real(options.form, cluster)
    defaults = {f.name: f.default for f in dataclasses.fields(options)}
    changed = {name: value for name, value in dataclasses.asdict(options).items() if value != defaults[name]}
    remedy = "form=real has them" if cluster.gpu else "hw-* clusters have them"
    form = "real form here, which has its own software costs" if real else f"paper form here, without software costs; {remedy}"
    return [
        f"{system.name}.{name}={_shown(value)} has no effect: {system.name} runs in its {form}"
        for name, value in changed.items()
        if FIELDS.get(name, ("", EVERYWHERE))[1] == (PAPER_FORM if real else REAL_FORM)
    ]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
