"""What a whole model is: its layout on GPUs, weights, FLOPs, bytes of state. See README.md in this folder."""

from dysharp.model.batch import StepBatch, prompt_batch
from dysharp.model.cache import cache_bytes, index_bytes
from dysharp.model.flops import CONVENTIONS, FLASH_BACKWARD, MEGATRON, Convention, flops_of, mean_context, model_flops
from dysharp.model.formats import COPIES, EVERY, FORMATS, ROW_BYTES, Formats, WeightFormat, formats_of, linears, published, recipe_for, trained
from dysharp.model.layout import Chunk, Layout, check_domain, check_layout, chunks_of, count_chunks, layout_of
from dysharp.model.operators import CORE, DENSE, NORMS, POSITIONS, ROUTER, SHARED, UP, LayerOperator, MemoryOp, RowExchange, Sum, Weight, is_routed
from dysharp.model.state import PLAIN, RECIPES, RankParameters, Recipe, dummy_bytes, padded_vocab, rank_parameters, state_bytes
from dysharp.model.weights import counted_weights, head_weights, mtp_weights, parameters_of, whole_mtp_layer
