"""Training steps of whole models: layouts, stages, accounting and memory. See README.md in this folder."""

from dysharp.steps.layout import Chunk, Layout, Placement, check_domain, check_layout, chunks_of, chunks_of_rank, layout_of

__all__ = ["Chunk", "Layout", "Placement", "check_domain", "check_layout", "chunks_of", "chunks_of_rank", "layout_of"]
