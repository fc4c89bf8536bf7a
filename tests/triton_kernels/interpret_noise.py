"""Runs the noise kernel in Triton's interpreter and saves what it made: `... CASES.json OUT.npz`.

A process of its own, because the interpreter is chosen when triton is first imported.
"""

import json
import sys

import numpy as np
import torch

from triton_kernels.noise.kernel import launch_with_bits

cases = json.load(open(sys.argv[1], encoding="utf-8"))
arrays = {}
for index, case in enumerate(cases):
    normals, bits = launch_with_bits(*case, torch.device("cpu"))
    arrays[f"normals{index}"] = normals.numpy()
    arrays[f"bits{index}"] = bits.numpy().view(np.uint32)
np.savez(sys.argv[2], **arrays)
