"""Policy versions in memory: one in use, the next prepared beside it, and a switch of pointers.

`prepare` may run in a thread while the model denoises with another version; `use` then only makes
the parameters point to other tensors. Tensors that can stay as they lie in the file are mapped,
not copied: on a CPU all workers of a host share one copy.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlightd.dit.lora import check_policy, policy_parameters, read_adapter
from spotlightd.dit.models import DiffusionModel
from spotlightd.errors import InputError
from spotlightd.weights.tensors import TensorValue, tensors_digest

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
}
"""As safetensors writes them."""


class Versions:
    """The policy versions that one model can sample with.

    Invariant: `bound` is None, or the parameters point to the tensors of that version.

    Args:
        kept: versions that stay prepared, beside the one in use where that is older.
    """

    def __init__(self, model: DiffusionModel, kept: int = 2) -> None:
        self._model = model
        self._kept = kept
        self._prepared: dict[int, dict[str, Tensor]] = {}
        self.bound: int | None = None

    def __contains__(self, version: int) -> bool:
        return version in self._prepared

    def prepare(self, path: Path, digest: str | None) -> dict[str, Tensor]:
        """Bring a version to the model's device, for `add`.

        Args:
            digest: of the tensors, from the manifest (`weights.tensors`); None: unknown.

        Raises InputError where the file does not fit the model, or where what lies on the device
        in the end does not have the digest.
        """
        parameters = policy_parameters(self._model)
        read = read_adapter(path)
        check_policy(parameters, read, str(path))
        placed = {
            name: read[name].to(parameter.device, parameter.dtype)
            for name, parameter in parameters.items()
        }
        same = all(read[name].dtype == tensor.dtype for name, tensor in placed.items())
        found = digest_of_tensors(placed if same else read)
        if digest is not None and found != digest:
            raise InputError(
                f"{path}: the tensors as bound have the digest {found[:12]}, the manifest says "
                f"{digest[:12]}: the file or this host's memory is damaged"
            )
        return placed

    def add(self, version: int, prepared: dict[str, Tensor]) -> None:
        """Keep what `prepare` returned, and let the oldest version go that is not in use."""
        self._prepared[version] = prepared
        for old in sorted(self._prepared)[: -self._kept]:
            if old != self.bound:
                del self._prepared[old]

    def use(self, version: int) -> None:
        """Sample with a prepared version from now on."""
        if self.bound != version:
            for name, parameter in policy_parameters(self._model).items():
                parameter.data = self._prepared[version][name]
            self.bound = version

    def digest(self) -> str:
        """Return the digest of the tensors that the model's parameters point to."""
        return digest_of_tensors(dict(policy_parameters(self._model)))


def digest_of_tensors(tensors: dict[str, Any]) -> str:
    """Return `weights.tensors.tensors_digest` of tensors on any device."""
    return tensors_digest(
        {
            name: TensorValue(
                DTYPE_NAMES[tensor.dtype],
                tuple(tensor.shape),
                memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()),
            )
            for name, tensor in tensors.items()
        }
    )
