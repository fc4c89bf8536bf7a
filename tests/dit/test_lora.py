"""The adapter: nothing at first, exact on disk, and never bound by halves."""

import pytest
import torch
from safetensors.torch import save_file

from spotlightd.dit.lora import (
    adapter_bytes,
    adapter_disabled,
    adapter_parameters,
    attach_lora,
    bind_adapter,
    policy_parameters,
    read_adapter,
)
from spotlightd.dit.models import load_model
from spotlightd.errors import InputError
from spotlightd.models import EMBEDDED_DIR


@pytest.fixture
def adapted(model):
    attach_lora(model, 4, 8.0)
    return model


def velocity(model, make_request):
    settings = make_request().sampler
    prompts = model.encode_prompts(['"OPEN"'])
    x = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.velocity(x, torch.tensor([0.7]), prompts, settings)


def perturb(model, by=0.01):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def test_a_fresh_adapter_changes_nothing(model, make_request):
    before = velocity(model, make_request)
    attach_lora(model, 4, 8.0)
    assert torch.equal(velocity(model, make_request), before)


def test_only_the_adapter_trains(adapted):
    trainable = {id(p) for p in adapted.transformer.parameters() if p.requires_grad}
    assert trainable == {id(p) for p in adapter_parameters(adapted).values()}


def test_every_target_of_every_layer_is_adapted(adapted):
    layers, targets = len(adapted.transformer.transformer_blocks), len(adapted.lora_targets)
    assert len(adapter_parameters(adapted)) == 2 * layers * targets


def test_the_initial_adapter_is_the_seeds_and_leaves_torchs_generator_alone(model_dir):
    models = [load_model(model_dir) for _ in range(3)]
    state = torch.random.get_rng_state()
    for model, seed in zip(models, (5, 5, 6), strict=True):
        attach_lora(model, 4, 8.0, seed)
    assert torch.equal(torch.random.get_rng_state(), state)
    same, again, other = (adapter_bytes(model) for model in models)
    assert same == again != other


def test_an_adapter_goes_through_a_file_to_another_model_exactly(
    adapted, model_dir, make_request, tmp_path
):
    perturb(adapted)
    path = tmp_path / "adapter.safetensors"
    path.write_bytes(adapter_bytes(adapted))
    other = load_model(model_dir)
    attach_lora(other, 4, 8.0, seed=9)
    bound = bind_adapter(other, read_adapter(path), str(path))
    assert bound == len(adapter_parameters(adapted))
    assert torch.equal(velocity(other, make_request), velocity(adapted, make_request))


def test_without_its_adapter_the_model_is_the_reference_policy(adapted, model_dir, make_request):
    base = velocity(load_model(model_dir), make_request)
    perturb(adapted)
    changed = velocity(adapted, make_request)
    assert not torch.equal(changed, base)
    with adapter_disabled(adapted):
        assert torch.equal(velocity(adapted, make_request), base)
    assert torch.equal(velocity(adapted, make_request), changed)


def test_the_adapter_comes_back_after_an_error_in_the_block(adapted, make_request):
    perturb(adapted)
    changed = velocity(adapted, make_request)
    with pytest.raises(KeyError), adapter_disabled(adapted):
        raise KeyError
    assert torch.equal(velocity(adapted, make_request), changed)


def damage_missing(tensors):
    tensors.pop(min(tensors))


def damage_unknown(tensors):
    tensors["another.weight"] = torch.zeros(1)


def damage_shape(tensors):
    tensors[max(tensors)] = torch.zeros(2, 2)


def damage_value(tensors):
    tensors[max(tensors)][0, 0] = torch.nan


def damage_all_names(tensors):
    for name in list(tensors):
        tensors[f"base_model.{name}"] = tensors.pop(name)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_missing, "1 tensors missing"),
        (damage_unknown, "1 unknown"),
        (damage_shape, r"is \(2, 2\), the model's is"),
        (damage_value, "not finite"),
        (damage_all_names, "96 tensors missing"),
        (dict.clear, "96 tensors missing"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_model_left_as_it_was(adapted, damage, reason):
    before = adapter_bytes(adapted)
    tensors = {k: p.detach() + 1 for k, p in adapter_parameters(adapted).items()}
    damage(tensors)
    with pytest.raises(InputError, match=f"version 7.*{reason}"):
        bind_adapter(adapted, tensors, "version 7")
    assert adapter_bytes(adapted) == before


def test_an_adapter_of_another_rank_is_refused(adapted, model_dir):
    other = load_model(model_dir)
    attach_lora(other, 8, 8.0)
    tensors = dict(adapter_parameters(other))
    with pytest.raises(InputError, match="lora_rank must be the same"):
        bind_adapter(adapted, tensors, "wide.safetensors")


def test_without_an_adapter_the_policy_is_every_weight(model_dir, tmp_path):
    trained, worker = load_model(model_dir), load_model(model_dir)
    with torch.no_grad():
        for parameter in policy_parameters(trained).values():
            parameter.mul_(1.25)
    path = tmp_path / "policy.safetensors"
    path.write_bytes(adapter_bytes(trained))
    bound = bind_adapter(worker, read_adapter(path), "policy")
    assert bound == len(list(worker.transformer.parameters()))
    assert adapter_bytes(worker) == adapter_bytes(trained)


def test_an_adapter_keeps_small_updates_on_a_narrow_model():
    narrow = load_model(EMBEDDED_DIR, torch.bfloat16)
    attach_lora(narrow, 4, 8.0)
    parameters = adapter_parameters(narrow)
    assert {p.dtype for p in parameters.values()} == {torch.float32}
    with torch.no_grad():
        parameter = next(iter(parameters.values()))
        before = parameter.clone()
        parameter.add_(1e-6)
    assert not torch.equal(parameter, before)


def test_a_model_without_adapter_takes_none(model):
    with pytest.raises(InputError, match="does not fit the model"):
        bind_adapter(model, {}, "x")


def test_a_missing_or_damaged_file_is_named(tmp_path):
    path = tmp_path / "adapter.safetensors"
    with pytest.raises(InputError, match=str(path)):
        read_adapter(path)
    save_file({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match=str(path)):
        read_adapter(path)


def test_targets_that_no_layer_bears_are_an_error(model):
    model.lora_targets = ("to_nowhere",)
    with pytest.raises(InputError, match="no layer of the model takes an adapter"):
        attach_lora(model, 4, 8.0)
