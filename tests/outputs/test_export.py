"""`spotlightctl export` on a state directory, and what the files say."""

import io
import json
import sqlite3

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save

from spotlightd.commands import run_app
from spotlightd.config import Config
from spotlightd.control.cli import app
from spotlightd.dit.lora import adapter_bytes, adapter_parameters, attach_lora
from spotlightd.dit.models import load_model
from spotlightd.dit.png import encode_png
from spotlightd.dit.sampler import Sampler
from spotlightd.errors import InputError, UsageError
from spotlightd.outputs.adapter_file import FILE_NAME, to_diffusers
from spotlightd.outputs.export import export
from spotlightd.outputs.grid import GridRow, draw_grid
from spotlightd.outputs.merge import merge
from spotlightd.replay import sample_whole
from spotlightd.replay_command import replay_one
from spotlightd.sections import RunSection, TrainerSection
from spotlightd.store.blobs import Blobs
from spotlightd.store.store import Store
from spotlightd.wire.messages import FrameSpec, Result
from tests.dit.plain_pipelines import HEIGHT, WIDTH, requests, settings_of
from tests.dit.tiny_pipelines import save as save_pipeline


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_pipeline("sd3", tmp_path_factory.mktemp("base") / "tiny-sd3")


@pytest.fixture(scope="module")
def trained(base):
    """The base with an adapter that does something."""
    model = load_model(base)
    attach_lora(model, 2, 5.0)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():
            parameter.copy_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def state_dir(tmp_path, base, trained):
    """A run of one update, evaluated before and after, whose daemon is still running."""
    folder = tmp_path / "state"
    config = Config(
        run=RunSection(name="signs", model=str(base), iterations=1),
        trainer=TrainerSection(lora_rank=2, lora_alpha=5.0),
    )
    store = Store(folder)
    store.begin_run("signs", msgspec.json.encode(config).decode()).result()
    settings = settings_of(trained, "sd3")
    for version, shade in ((0, 60), (1, 200)):
        path = folder / "weights" / str(version) / "adapter.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(adapter_bytes(trained))
        asked = [
            msgspec.structs.replace(
                r, request_id=f"e{version}-{r.seed}", iteration=version, policy_version=version
            )
            for r in requests(settings)
        ]
        store.save_cycle("{}", version, asked).result()
        store.set_leases([(r.request_id, number + 1, "a") for number, r in enumerate(asked)])
        png = encode_png(np.full((32, 48, 3), shade, np.uint8))
        for number, request in enumerate(asked):
            frames = (FrameSpec("image", len(png)),)
            result = Result(request.request_id, number + 1, {"ocr": 0.5}, "", 1.0, 0, frames)
            assert store.commit_result(result, None, png, "a").result()[0] == "committed"
        store.add_metrics(version, {"held_out.ocr": 0.25 + version / 2}).result()
    yield folder
    store.close()


def test_an_adapter_is_written_with_card_and_grid(state_dir, tmp_path, trained, capsys):
    out = tmp_path / "out"
    command = ["export", str(out), "--state-dir", str(state_dir)]
    assert run_app(app, "spotlightctl", command) == 0
    assert capsys.readouterr().out.split() == [
        str(out / name) for name in ("README.md", "samples.png", FILE_NAME)
    ]
    tensors = load_file(out / FILE_NAME)
    for name, parameter in adapter_parameters(trained).items():
        assert torch.equal(tensors[f"transformer.{name}"], parameter)
    card = (out / "README.md").read_text()
    assert "base_model: tiny-sd3" in card and "after 1 updates" in card
    assert "| 0 | 0.2500 |" in card and "| 1 | 0.7500 |" in card
    assert "| `trainer.lora_alpha` | `5.0` |" in card and "10.47 a reserved" in card
    with Image.open(out / "samples.png") as grid:
        shades = {int(v) for v in np.unique(np.asarray(grid.convert("L")))}
    assert {60, 200} <= shades


def test_a_picture_is_drawn_again_and_compared(state_dir, trained):
    (asked, *_) = requests(settings_of(trained, "sd3"))
    name = f"e1-{asked.seed}"
    found = replay_one(state_dir, name)
    assert (found["same"], found["compared"]) == (False, "pixels (of 255)")
    assert found["difference"] > found["tolerance"] and not found["problem"]

    sampler = Sampler(trained)
    (image,) = sampler.decode(sample_whole(sampler, [asked]))
    (digest,) = Blobs(state_dir / "blobs").put_many([encode_png(image)])
    with sqlite3.connect(state_dir / "spotlight.db") as database:
        database.execute("UPDATE result SET image = ? WHERE request_id = ?", (digest, name))
    database.close()
    assert replay_one(state_dir, name)["same"]
    with pytest.raises(UsageError, match="no trajectory"):
        replay_one(state_dir, "e7-0")


def test_a_merged_model_loads_alone_and_draws_the_same(state_dir, tmp_path, trained):
    out = tmp_path / "merged"
    written = export(state_dir, out, 1, merged=True)
    assert out / "model_index.json" in written and not (out / FILE_NAME).exists()
    merged = load_model(out)
    asked = requests(settings_of(trained, "sd3", 4.5))
    pixels = [
        m.pixels(
            torch.stack([t.latents_LD for t in sample_whole(Sampler(m), asked)]), HEIGHT, WIDTH
        )
        for m in (trained, merged)
    ]
    np.testing.assert_allclose(pixels[0], pixels[1], atol=1e-4)


def test_a_model_that_diffusers_does_not_know_is_not_merged(tmp_path, trained):
    (tmp_path / FILE_NAME).write_bytes(to_diffusers(adapter_bytes(trained), 2, 5.0, "adapter"))
    with pytest.raises(InputError, match="export the adapter alone"):
        merge(tmp_path, tmp_path)


def test_versions_and_folders_that_are_not_there(state_dir, tmp_path):
    with pytest.raises(InputError, match=r"version 7 is not at hand .* newest version is 1"):
        export(state_dir, tmp_path / "out", 7, merged=False)
    with pytest.raises(InputError, match="no run can be read"):
        export(tmp_path / "nowhere", tmp_path / "out", None, merged=False)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a safetensors file"),
        (b"\x05\x00\x00\x00\x00\x00\x00\x00[1,2]", "is not a safetensors file"),
        (save({"a.lora_A.weight": torch.zeros(2, 3)})[:-4], "cut short"),
        (save({"a.weight": torch.zeros(2, 3)}), "a.weight is not part of a LoRA"),
        (save({"a.lora_A.weight": torch.zeros(4, 3)}), r"lora_rank is 2"),
        (save({"a.lora_B.weight": torch.zeros(2, 3)}), r"lora_rank is 2"),
    ],
)
def test_files_that_are_no_adapter_are_refused(content, says):
    with pytest.raises(InputError, match=says):
        to_diffusers(content, 2, 5.0, "version 1")


def test_the_file_carries_alpha_and_any_dtype():
    narrow = {"a.b.lora_A.weight": torch.ones(2, 3, dtype=torch.bfloat16)}
    content = to_diffusers(save(narrow), 2, 5.0, "version 1")
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(
        json.loads(content[8 : 8 + size])["__metadata__"]["lora_adapter_metadata"]
    )
    assert metadata == {
        "transformer.r": 2, "transformer.lora_alpha": 5.0, "transformer.target_modules": ["a.b"],
    }  # fmt: skip


def test_a_grid_needs_pictures_and_shrinks_large_ones():
    with pytest.raises(ValueError, match="at least one picture"):
        draw_grid([])
    large = encode_png(np.zeros((1024, 512, 3), np.uint8))
    with Image.open(io.BytesIO(draw_grid([GridRow("p", [large], [large, large])]))) as grid:
        assert grid.size == (4 + 132 + 8 + 2 * 132, 4 + 18 + 256 + 4)
