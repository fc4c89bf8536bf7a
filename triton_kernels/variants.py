"""What compiling ahead of time needs to know of a kernel: one `Variant` a configuration.

Every `kernel.py` lists in `VARIANTS` all that its launcher can choose, from the same tables that
the launcher reads. `scripts/aot.py` compiles them for GPUs that are not there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    name: str
    """Unique; op, kernel and what distinguishes the configuration."""
    kernel: Any
    """A function decorated with `triton.jit`."""
    types: Mapping[str, str]
    """Triton types of the run-time arguments, in their order. Pointers are taken as 16-byte
    aligned, as torch's allocator returns them."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values of the `tl.constexpr` parameters."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Compiler options, as passed at launch: `num_warps`, `num_stages`, `enable_fp_fusion`."""
    targets: tuple[str, ...] = ("sm_80", "sm_90", "sm_100")
    """GPUs on which the launcher may choose it."""
    spills_because: str = ""
    """Why spilled registers are accepted here; empty where they are not."""
