"""TensorRT-LLM's NVLink all-to-all: one copy per GPU, one-sided or two-sided.

One-sided: slots fixed by the source, and a barrier. Two-sided: FIFOs behind an exchange of counts.
"""

from dataclasses import replace

from dysharp.base import ByName, ConfigError
from dysharp.costs.transfer import TRT_LAUNCHES, summed_bytes
from dysharp.program import I32, Discipline, frozen
from dysharp.systems import BY_TYPE, HOPPER_ON, Costs, Facts, Form, Layer, Moves, Reach, Ships, Shown, kernels
from dysharp.systems.building import Batch, Kernels, check
from dysharp.systems.building.formats import SIDES

ROWS = ("rows", "fp8", "fp8-plain", "nvfp4")
"""Formats of the rows that the kernels send. Results return as "rows", and two-sided also as "nvfp4"."""


@frozen
class Options(Form):
    """Options of TensorRT-LLM's all-to-all.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `sides` | "one" or "two"; the paper form does not depend on it |
    | `dispatch` | format of rows: "rows" (the model's), "fp8", "fp8-plain" or "nvfp4" (bytes: `building.formats`) |
    | `combine` | format of results: "rows", or with two sides "nvfp4" (scaled back before the sum) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds kernels, work per token and barriers.
    """

    sides: str = "one"
    dispatch: str = "rows"
    combine: str = "rows"
    compute: bool = True


FACTS = Facts(
    source="https://github.com/NVIDIA/TensorRT-LLM (NVLink one-sided and two-sided all-to-all)",
    options=Options,
    moves=Moves("one_copy_per_gpu", formats=ROWS, results=("rows", "nvfp4")),
    costs=Costs(
        permutes=1,
        fused=False,
        drops="kernels, per-token work, barriers (form real has them); one-sided Combine pushes, the kernel reads (the same bytes the same way)",
    ),
    reach=Reach(no_switch=("paper",)),
    shown=Shown("#B3E2CD"),
    ships=Ships(
        "TensorRT-LLM fused_moe_cutlass.py: only rows of NVFP4 models are quantised before sending; hidden sizes: unknown",
        HOPPER_ON,
        {"fp8": {"dispatch": "rows"}, "bf16": {"dispatch": "rows"}},
        phases=("decode", "prefill"),
        phases_source="TensorRT-LLM is an inference library",
    ),
)


def _begins(layer: Layer, options: Options) -> ByName:
    """One side or two, and the formats of results that they have."""
    check("trtllm-a2a.sides", options.sides, SIDES)
    if options.combine not in ("rows", "nvfp4"):
        raise _wrong_combine(options)
    return {}


def _wrong_combine(options: Options) -> ConfigError:
    return ConfigError(f"trtllm-a2a.combine: found {options.combine!r} with sides={options.sides}, expected rows, or nvfp4 with sides=two")


@kernels("trtllm-a2a", FACTS, begins=_begins)
def _real(layer: Layer, options: Options) -> type[Kernels]:
    """The paper form with the software costs of the one-sided or the two-sided kernels."""
    if options.combine == "nvfp4" and options.sides == "one":
        raise _wrong_combine(options)
    return _OneSided if options.sides == "one" else _TwoSided


class _Sided(Kernels):
    """Steps of both variants: work per token, done by the whole GPU."""

    def per_token(self, operator: str, each_ps: int, copy_ps: int, begun: I32 | None = None) -> Batch:
        """Add a DELAY per token of `layer.p.sent` on its source GPU, one token at a time.

        A DELAY lasts `each_ps` and `copy_ps` per copy of the token.
        """
        durations = [0] + [each_ps + copies * copy_ps for copies in range(1, self.n_gpus + 1)]
        issuer = self.ready("tokens", self.pools(1, "tokens"))[self.p.sent_source]
        return self.copies(operator, durations, self.p.sent_source, issuer, self.p.token_pairs[self.p.sent], name="token", begun=begun)


class _OneSided(_Sided):
    """Dispatch: puts into slots that the source knows, then a barrier. Combine: a barrier, then rows and sums."""

    LAUNCHES = TRT_LAUNCHES + 1  # one more kernel prepares or cleans the receiver's side

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs after which all GPUs have sent all rows."""
        start = self.delay("dispatch.launch", self.LAUNCHES * self.costs.kernel_ps)
        copy = self.costs.copy_ps("sm.copy_GBps", self.sent_bytes) // self.cluster.n_sms
        tokens = self.per_token("dispatch", self.costs.ps("trt.token_us"), copy, begun=start)
        puts = self.dispatch_puts(Discipline.READY_FIFO)
        self.paced("dispatch", puts, self.costs.stores_ps(self.sent_bytes), after=tokens.op[self.p.sent_of_pair])
        return self.barrier_after("dispatch", "received", start, puts)

    def combine(self, finished: I32) -> None:
        """Add Combine, which starts after the GEMMs of each GPU, `finished[gpu]`."""
        start = self.delay("combine.launch", self.LAUNCHES * self.costs.kernel_ps, after=finished)
        # The source reads its copies. A request takes as long as the acknowledgement that a push waits for.
        asked = self.delay("asked", self.b.hardware.responder)
        self.wait_each(asked, self.barrier("combine", "ready", start))
        puts = self.combine_puts(Discipline.READY_FIFO)
        self.paced("combine", puts, self.costs.stores_ps(self.model.row_bytes), begun=asked)
        copy = self.costs.copy_ps("sm.copy_GBps", self.model.row_bytes) // self.cluster.n_sms
        sums = self.per_token("combine", self.costs.ps("trt.token_us"), copy)
        self.wait_each(sums.op[self.p.sent_of_pair[puts.unit]], puts.op)


class _TwoSided(_Sided):
    """An exchange of counts and indices, then FIFOs.

    The same warps pack the fields of a token and push its copies, the own copy too (`costs.transfer.fifo_copy_us`).
    """

    LAUNCHES = TRT_LAUNCHES

    def counts(self) -> I32:
        """Send counts and indices to every GPU. Returns `[gpus]` DELAYs after which a GPU has received them."""
        start = self.delay("prepare", self.LAUNCHES * self.costs.kernel_ps + self.costs.ps("trt.token_us", self.tokens))
        return self.barrier("prepare", "prepared", start)

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs after which a GPU has taken all its rows out of the FIFOs."""
        start = self.delay("dispatch.launch", self.LAUNCHES * self.costs.kernel_ps)
        if self.direction == "fwd":  # a backward pass knows counts and indices
            self.wait_each(start, self.counts())
        copy = self.costs.fifo_ps(self.sent_bytes, fields=1 + (self.options.dispatch in ("fp8", "nvfp4")))
        tokens = self.per_token("dispatch", 0, copy, begun=start)
        puts = self.dispatch_puts(Discipline.READY_FIFO)
        self.wait_each(puts.op, tokens.op[self.p.sent_of_pair])
        return self.barrier_after("dispatch", "received", start, puts)

    def combine(self, finished: I32) -> None:
        """Add Combine: copies return through the FIFOs after `finished[gpu]`.

        Another kernel sums the copies when all of them have arrived.
        """
        row = self.model.row_bytes
        start = self.delay("combine.launch", self.LAUNCHES * self.costs.kernel_ps, after=finished)
        puts = self.combine_puts(Discipline.READY_FIFO)
        self.paced("combine", puts, self.costs.fifo_ps(self.back_bytes, low_precision=self.back_bytes != row), own=True, begun=start)
        returned = self.barrier_after("combine", "returned", start, puts)
        own = self.counted(self.p.sent_source)
        summed = float(summed_bytes(row, self.routing.topk))
        self.delay("combined", [self.costs.stream_ps(int(n) * summed) for n in own], after=returned)


@frozen
class _InferOptions(Form):
    """Options of FlashInfer's one-sided all-to-all.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `dispatch` | format of rows: "rows" (the model's), "fp8", "fp8-plain" or "nvfp4": the caller quantises |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    dispatch: str = "rows"
    compute: bool = True


FLASHINFER = replace(
    FACTS,
    source="https://github.com/flashinfer-ai/flashinfer (flashinfer/comm/trtllm_moe_alltoall.py)",
    options=_InferOptions,
    shown=Shown("#A6761D"),
    ships=Ships(
        "FlashInfer flashinfer/comm/trtllm_moe_alltoall.py; sm90 and later; payloads of any type",
        HOPPER_ON,
        BY_TYPE,
        phases=("decode", "prefill"),
        phases_source="FlashInfer is an inference library",
    ),
)


@kernels("flashinfer", FLASHINFER)
class _Infer(_OneSided):
    """FlashInfer's one-sided all-to-all (MoeAlltoAll): the kernels of TensorRT-LLM's one-sided all-to-all, built into FlashInfer.

    They are those of `trtllm-a2a` with `sides=one`; FlashInfer has the two-sided ones in another call. The Programs are equal.
    """
