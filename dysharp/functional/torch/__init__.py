"""PyTorch and Hugging Face blocks on the functional machine.

Torch is imported at the first use, not with the package.
"""

from dysharp.functional.torch.blocks import BLOCKS, make_block
from dysharp.functional.torch.experts import ModuleExperts
from dysharp.functional.torch.machine import MoeMachine
from dysharp.functional.torch.routers import capture
from dysharp.functional.torch.wrap import wrap
