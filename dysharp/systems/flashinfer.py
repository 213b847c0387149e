"""FlashInfer's one-sided all-to-all (MoeAlltoAll): the kernels of TensorRT-LLM's one-sided all-to-all, built into FlashInfer.

The kernels are those of `trtllm-a2a` with `sides=one`; FlashInfer has the two-sided ones in another call. The Programs are equal.
"""

from dataclasses import replace

from dysharp.base.values import frozen
from dysharp.systems import BY_TYPE, HOPPER_ON, Form, Ships, Shown, kernels, trtllm_a2a
from dysharp.systems.building import Kernels, LayerBuilder


@frozen
class Options(Form):
    """Options of FlashInfer's one-sided all-to-all.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `dispatch` | format of rows: "rows" (the model's), "fp8", "fp8-plain" or "nvfp4": the caller quantises |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |
    """

    dispatch: str = "rows"
    compute: bool = True


FACTS = replace(
    trtllm_a2a.FACTS,
    source="https://github.com/flashinfer-ai/flashinfer (flashinfer/comm/trtllm_moe_alltoall.py)",
    options=Options,
    shown=Shown("#A6761D"),
    ships=Ships(
        "FlashInfer flashinfer/comm/trtllm_moe_alltoall.py; sm90 and later; payloads of any type",
        HOPPER_ON,
        BY_TYPE,
        phases=("decode", "prefill"),
        phases_source="FlashInfer is an inference library",
    ),
)


@kernels("flashinfer", FACTS)
def real(layer: LayerBuilder, options: Options) -> Kernels:
    """The kernels of `trtllm-a2a`, one-sided."""
    return trtllm_a2a.OneSided(layer)
