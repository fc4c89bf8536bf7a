"""The policy's trained weights: attach an adapter, read, write and bind, always by the same names.

A policy file is safetensors with the adapter's parameters by peft's names below `transformer`, or,
where no adapter is attached, with every parameter of the transformer. Binding is strict: a file
that binds nothing, or not everything, is an error, never a silent no-op.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from spotlightd.dit.models import DiffusionModel
from spotlightd.errors import InputError

ADAPTER = "policy"
MARK = f".{ADAPTER}."


def attach_lora(model: DiffusionModel, rank: int, alpha: float, seed: int = 0) -> None:
    """Add a LoRA of `rank` to the model's target layers; it changes nothing yet (B = 0).

    The initial A depends on `seed` alone. The adapter is fp32 whatever the model's dtype: its
    updates are far smaller than a bf16 weight's last place. Raises InputError where no layer bears
    a target name.
    """
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(model.lora_targets))
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model.transformer.add_adapter(config, adapter_name=ADAPTER)
    except ValueError as error:
        raise InputError(f"no layer of the model takes an adapter: {error}") from None
    finally:
        torch.random.set_rng_state(state)
    for parameter in adapter_parameters(model).values():
        parameter.data = parameter.data.float()
    model.transformer.eval()


def adapter_parameters(model: DiffusionModel) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name, in a fixed order."""
    return {
        name.replace(MARK, "."): parameter
        for name, parameter in sorted(model.transformer.named_parameters())
        if MARK in name
    }


def policy_parameters(model: DiffusionModel) -> dict[str, torch.nn.Parameter]:
    """Return what a policy consists of: the adapter, or every weight of a model without one."""
    everything = sorted(model.transformer.named_parameters())
    return adapter_parameters(model) or dict(everything)


def adapter_bytes(model: DiffusionModel) -> bytes:
    """Return the policy's weights as the bytes of a safetensors file."""
    return save({k: p.detach().cpu().contiguous() for k, p in policy_parameters(model).items()})


def read_adapter(path: Path) -> dict[str, Tensor]:
    """Raises InputError where the file is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"adapter {path} is missing or damaged: {error}") from None


def check_policy(
    parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str
) -> None:
    """Raises InputError where a policy file does not fit the model's parameters, in names, in
    shapes or by values that are not finite; `source` is named in it.
    """
    missing, extra = parameters.keys() - tensors.keys(), tensors.keys() - parameters.keys()
    if missing or extra:
        raise InputError(
            f"{source} does not fit the model: {len(missing)} tensors missing (such as "
            f"{min(missing, default='-')}), {len(extra)} unknown (such as "
            f"{min(extra, default='-')}); were base model, rank and trainer.train the same?"
        )
    for name, parameter in parameters.items():
        if tensors[name].shape != parameter.shape:
            raise InputError(
                f"{source}: {name} is {tuple(tensors[name].shape)}, the model's is "
                f"{tuple(parameter.shape)}; lora_rank must be the same"
            )
        if not bool(tensors[name].isfinite().all()):
            raise InputError(f"{source}: {name} holds values that are not finite")


@torch.no_grad()
def bind_adapter(
    model: DiffusionModel,
    tensors: dict[str, Tensor],
    source: str,
    copy: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> int:
    """Copy a policy's weights into the model and return the number of tensors bound.

    Args:
        copy: called with each parameter and its new value.

    Raises InputError, with the model unchanged, where names or shapes differ or a value is not
    finite; `source` is named in it.
    """
    parameters = policy_parameters(model)
    check_policy(parameters, tensors, source)
    for name, parameter in parameters.items():
        copy(parameter, tensors[name])
    return len(parameters)


@contextmanager
def adapter_disabled(model: DiffusionModel) -> Iterator[None]:
    """Within the block the model is the reference policy: the base without its adapter."""
    model.transformer.disable_adapters()
    try:
        yield
    finally:
        model.transformer.enable_adapters()
