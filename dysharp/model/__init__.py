"""What a whole model is: its layout on GPUs, weights, FLOPs, bytes of state. See README.md in this folder."""

from dysharp.model.layout import Chunk, Layout, Placement, check_domain, check_layout, chunks_of, chunks_of_rank, layout_of

__all__ = ["Chunk", "Layout", "Placement", "check_domain", "check_layout", "chunks_of", "chunks_of_rank", "layout_of"]
