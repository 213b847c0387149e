"""DeepEP's normal kernels inside one NVLink domain: Dispatch and Combine, each a family."""


from dysharp.base import F64, frozen_keywords
from dysharp.costs import transfer
from dysharp.measured.ep_kernels import EpCase, Options, copies_of, ep_fields, kernel_times, sent_dtype, sent_rows, verb_of
from dysharp.measured.families import Constants, Measurement, Unsupported, family, label, number, whole
from dysharp.specs import Gpu

SYSTEMS = ("DeepEP-normal", "DeepEP-normal V1", "DeepEP")


@frozen_keywords
class DeepEpCase(EpCase):
    """A call on `n_sm` SMs with a cached handle. `fp8`: FP8 rows in Dispatch; Combine always sends BF16.

    `copies`: mean number of GPUs per token. `row_bytes`: bytes of a row in the measured kernel.
    """

    n_sm: int
    fp8: bool
    copies: float
    row_bytes: float

    def options(self) -> Options:
        return ("dispatch", "fp8" if self.fp8 else "rows"), ("n_sm", self.n_sm)


def _belongs(m: Measurement, kind: str) -> bool:
    """Whether a measurement of this kind is of DeepEP's normal kernels."""
    return m.kind == kind and (m.system in SYSTEMS or m.system.startswith("DeepEP-normal V1 ("))


def _closed_us(case: DeepEpCase, gpu: Gpu, constants: Constants) -> F64:
    """Rings of SM channels beside the links (`costs.transfer`)."""
    form = transfer.deepep_dispatch_us if case.verb == "dispatch" else transfer.deepep_combine_us
    return form(gpu, constants, case.tokens, case.copies, case.row_bytes, case.n_sm, case.gpus)


def _program_us(case: DeepEpCase, constants: Constants) -> float:
    """The kernel under uniform routing."""
    return kernel_times("deepep", case, constants)[case.verb]


@family(
    "deepep-dispatch",
    belongs=lambda m: _belongs(m, "ep_dispatch"),
    closed_us=_closed_us,
    program_us=_program_us,
    dtypes_of=lambda model, options: (sent_dtype("dispatch", model, options),),
)
@family(
    "deepep-combine",
    belongs=lambda m: _belongs(m, "ep_combine"),
    closed_us=_closed_us,
    program_us=_program_us,
    dtypes_of=lambda model, options: (sent_dtype("combine", model, options),),
)
def _case(m: Measurement) -> DeepEpCase:
    """The case of a latency, or of the GB/s that a GPU receives, its own rows included."""
    read, verb = ep_fields(m), verb_of(m)
    rows = sent_rows(m, verb, read["hidden"])
    n_sm = whole(number(m, "sms"), "SMs")
    if n_sm % 2:
        raise Unsupported("an odd number of SMs: a channel is a pair of SMs")
    copies = copies_of(read)
    return DeepEpCase(
        **read,
        **rows,
        verb=verb,
        n_sm=n_sm,
        copies=copies,
        work=read["tokens"] * copies * rows["row_bytes"] / 1e3 if m.unit == "GB/s" else 0.0,
        shape=label(m, "hidden", "topk", "experts", "ep"),
    )
