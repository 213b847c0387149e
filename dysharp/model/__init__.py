"""What a whole model is: its layout on GPUs, weights, FLOPs, bytes of state. See README.md in this folder."""

from dysharp.model.layout import Chunk, Layout, check_domain, check_layout, chunks_of, layout_of

__all__ = ["Chunk", "Layout", "check_domain", "check_layout", "chunks_of", "layout_of"]
