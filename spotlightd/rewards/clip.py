"""Rewards from CLIP models, loaded with transformers from a folder on this machine.

`clip_score`: 100 times the cosine of image and prompt, at least 0 (CLIPScore, arXiv 2104.08718, in
the scale that is usually reported). `pickscore`: the logit of PickScore (arXiv 2305.01569) divided
by 26, as RL recipes use it, which brings it near 0 to 1.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spotlightd.errors import InputError

PICKSCORE_SCALE = 26.0
MAX_TEXT = 77


class ClipModel:
    """A CLIP model and its processor.

    Raises InputError where the folder is missing or not a CLIP model.
    """

    def __init__(self, folder: str, option: str) -> None:
        import torch
        from transformers import AutoProcessor, CLIPModel

        if not Path(folder).is_dir():
            raise InputError(f"rewards.{option} '{folder}' is no folder on this machine")
        try:
            self._model = CLIPModel.from_pretrained(folder, local_files_only=True).eval()
            self._processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"rewards.{option} '{folder}' is no CLIP model: {error}") from None
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(self._device)
        self._torch = torch

    def clip_score(self, images: Sequence[np.ndarray], prompts: Sequence[str]) -> list[float]:
        logits, scale = self._logits(images, prompts)
        return [max(100.0 * logit / scale, 0.0) for logit in logits]

    def pickscore(self, images: Sequence[np.ndarray], prompts: Sequence[str]) -> list[float]:
        return [logit / PICKSCORE_SCALE for logit in self._logits(images, prompts)[0]]

    def _logits(
        self, images: Sequence[np.ndarray], prompts: Sequence[str]
    ) -> tuple[list[float], float]:
        """Return each image's logit with its own prompt, and the scale that they contain."""
        rgb = [np.ascontiguousarray(np.broadcast_to(i, (*i.shape[:2], 3))) for i in images]
        inputs = self._processor(
            text=list(prompts),
            images=rgb,
            padding=True,
            truncation=True,
            max_length=MAX_TEXT,
            return_tensors="pt",
        ).to(self._device)
        with self._torch.inference_mode():
            logits = self._model(**inputs).logits_per_image.diagonal()
            return logits.float().tolist(), float(self._model.logit_scale.exp())
