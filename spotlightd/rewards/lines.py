"""Finds the lines of text in an image with PP-OCRv6's detector, as rapidocr runs it."""

from typing import Any

import numpy as np


class LineFinder:
    """Loads the detector with the first image: small images never need it."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._engine: Any = None

    def find(self, image_HWC: np.ndarray) -> list[np.ndarray]:
        """Return the lines cut out of a uint8 image, uint8 [H, W, 3], from top to bottom."""
        from rapidocr.utils.process_img import get_rotate_crop_image

        rgb = np.ascontiguousarray(np.broadcast_to(image_HWC, (*image_HWC.shape[:2], 3)))
        # rapidocr takes arrays as OpenCV has them, blue first.
        boxes = self._load()(rgb[..., ::-1], use_det=True, use_cls=False, use_rec=False).boxes
        if boxes is None:
            return []
        return [get_rotate_crop_image(rgb, box.astype(np.float32)) for box in boxes]

    def _load(self) -> Any:
        if self._engine is None:
            from rapidocr import RapidOCR

            options = "EngineConfig.onnxruntime"
            self._engine = RapidOCR(
                params={
                    "Global.log_level": "error",
                    f"{options}.intra_op_num_threads": self._threads,
                    f"{options}.inter_op_num_threads": 1,
                }
            )
        return self._engine
