"""Mixes, JPEG sizes, large images, CLIP from a folder, and the version of a scorer."""

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from spotlightd.errors import ConfigError, InputError
from spotlightd.planner.mixing import group_mix
from spotlightd.rewards import check_options
from spotlightd.rewards.jpeg_size import jpeg_size
from spotlightd.rewards.scoring import Scorer
from spotlightd.rewards.versions import scorer_version
from spotlightd.wire.rewards import RewardOptions

WEIGHTS = {"jpeg_size": -1.0, "grain": 0.5}


def noisy(seed, size=64):
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def test_noise_is_a_larger_jpeg_than_a_plain_ground():
    flat = np.full((64, 64, 1), 90, np.uint8)
    assert 0.3 < jpeg_size(flat) < 1.0 < 5.0 < jpeg_size(noisy(0))


def test_a_mix_reports_the_weighted_sum_of_raw_scores():
    names = ("mix", "jpeg_size", "grain")
    (out,) = Scorer(names, RewardOptions(weights=WEIGHTS)).score([noisy(1)], [""])
    expected = -out.scores["jpeg_size"] + 0.5 * out.scores["grain"]
    assert out.scores["mix"] == pytest.approx(expected) and out.error == ""


def test_a_harder_reward_does_not_stall_in_a_mix():
    """Raw, the first reward's spread of 100 would be all that trains."""
    rows = [{"easy": 100.0 * i, "hard": 0.01 * (i % 2)} for i in range(4)]
    mixed = group_mix(rows, {"easy": 1.0, "hard": 1.0})
    raw = [row["easy"] + row["hard"] for row in rows]
    assert np.corrcoef(raw, [r["hard"] for r in rows])[0, 1] == pytest.approx(0.447, abs=1e-3)
    easy = [(i - 1.5) / (math.sqrt(1.25) + 1e-6) for i in range(4)]
    hard = [(-1) ** (i + 1) * 0.005 / (0.005 + 1e-4) for i in range(4)]
    assert mixed == pytest.approx([a + b for a, b in zip(easy, hard, strict=True)], abs=1e-4)


def test_a_reward_that_is_equal_for_the_group_adds_nothing_to_a_mix():
    rows = [{"a": 1.0, "b": 5.0}, {"a": 2.0, "b": 5.0}]
    assert group_mix(rows, {"a": 1.0, "b": 7.0}) == group_mix(rows, {"a": 1.0})


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        (("http",), RewardOptions(), "needs rewards.http_url"),
        (("pickscore",), RewardOptions(), "needs rewards.pickscore_model"),
        (("mix",), RewardOptions(), "needs rewards.weights"),
        (("mix",), RewardOptions(weights={"ocr": 1.0}), "names 'ocr', which is not scored"),
        (("mix",), RewardOptions(weights={"orc": 1.0}), "did you mean 'ocr'"),
        (("mix",), RewardOptions(weights={"mix": 1.0}), "cannot hold 'mix'"),
    ],
)
def test_rewards_without_what_they_need_are_refused(names, options, says):
    with pytest.raises(ConfigError, match=says):
        check_options(names, options)


def poster(lines, size=(256, 128)):
    image = Image.new("RGB", size, (250, 248, 240))
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((20, 15 + 55 * number), line, fill=(20, 30, 90), font=ImageFont.load_default(34))
    return np.asarray(image)


@pytest.fixture(scope="module")
def reader():
    return Scorer(["ocr", "ocr_ctc"])


def test_lines_of_a_large_image_are_read_from_top_to_bottom(reader):
    images = [poster(["Spring Sale", "May 2024"])] * 2
    right, wrong = reader.score(images, ["Spring Sale May 2024", "Winter Sale May 2024"])
    assert right.scores["ocr"] == 1.0 and right.scores["ocr_ctc"] > 0.8
    assert wrong.scores["ocr"] < 0.8 and wrong.scores["ocr_ctc"] < 0.5


def test_a_large_image_without_text_scores_zero(reader):
    (out,) = reader.score([poster([])], ["OPEN"])
    assert (out.error, out.text, out.scores["ocr"]) == ("", "", 0.0)
    assert out.scores["ocr_ctc"] < 1e-6


def test_versions_tell_scorers_apart(tmp_path):
    options = RewardOptions(clip_score_model=str(tmp_path))
    before = scorer_version(["clip_score", "ocr"], options)
    assert before == scorer_version(["ocr", "clip_score"], options)
    assert before != scorer_version(["clip_score"], options)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert before != scorer_version(["clip_score", "ocr"], options)


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor

    from tests.dit.tiny_pipelines import clip_tokenizer

    torch.manual_seed(0)
    small = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    text = small | {"vocab_size": 200, "bos_token_id": 0, "eos_token_id": 1}
    vision = small | {"image_size": 16, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    images = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16)
    folder = tmp_path_factory.mktemp("clip")
    CLIPModel(config).save_pretrained(folder)
    CLIPProcessor(images, clip_tokenizer()).save_pretrained(folder)
    return folder


def test_clip_rewards_come_from_a_folder_and_equal_the_models_cosines(clip_folder):
    import torch
    from transformers import CLIPModel, CLIPProcessor

    images, prompts = [noisy(1), noisy(2)], ["a cup", "two red dogs on a table"]
    folder = str(clip_folder)
    options = RewardOptions(clip_score_model=folder, pickscore_model=folder)
    outcomes = Scorer(["clip_score", "pickscore"], options).score(images, ["", ""], prompts)
    model = CLIPModel.from_pretrained(clip_folder)
    inputs = CLIPProcessor.from_pretrained(clip_folder)(
        text=prompts, images=images, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        out = model(**inputs)
    cosines = torch.cosine_similarity(out.image_embeds, out.text_embeds).tolist()
    scale = float(model.logit_scale.detach().exp())
    for outcome, cosine in zip(outcomes, cosines, strict=True):
        assert outcome.scores["clip_score"] == pytest.approx(max(100 * cosine, 0), abs=1e-3)
        assert outcome.scores["pickscore"] == pytest.approx(scale * cosine / 26, abs=1e-4)
    assert abs(cosines[0] - cosines[1]) > 1e-4


def test_a_folder_that_is_no_clip_model_ends_the_scorer(tmp_path):
    for folder, says in (
        (str(tmp_path / "none"), "is no folder"),
        (str(tmp_path), "no CLIP model"),
    ):
        with pytest.raises(InputError, match=says):
            Scorer(["pickscore"], RewardOptions(pickscore_model=folder))
