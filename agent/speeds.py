"""How long a denoising step takes at each sequence-parallel degree, as this VM's workers show it.

Kept in a file by model and image size, so that a VM that starts again knows. A degree that was
never tried has the published speedup, which is high, so that it is tried as soon as it might help;
after `TRIAL_STEPS` steps its own speed counts.
"""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Collection
from pathlib import Path

from spotlightd.dit.degrees import PUBLIC_CURVE, Curve

NEWEST = 0.2
"""Weight of the latest step in the average."""
TRIAL_STEPS = 3
"""Of a degree that is new here. The fastest of them counts: the first one also meets its peers and
fills caches."""

Size = tuple[int, int]


class Speeds:
    """Seconds per image and denoising step, by image size and degree.

    Args:
        path: of the file; one that cannot be read is as good as none.
        model: names the model in the file.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path = path
        self._model = model
        self._steps: dict[str, dict[str, float]] = {}
        self._trials: dict[tuple[Size, int], int] = {}
        """Steps seen of degrees that the file did not know."""
        with contextlib.suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
            kept = json.loads(path.read_text(encoding="utf-8"))[model]
            self._steps = {
                size: {str(int(d)): float(s) for d, s in steps.items() if float(s) > 0}
                for size, steps in kept.items()
            }

    def observe(self, size: Size, degree: int, step_s: float) -> bool:
        """A step of one image took so long; with a batch, divided by its images.

        Returns whether this ends the degree's trial: plans that were made without it may be wrong.
        """
        steps = self._steps.setdefault(_key(size), {})
        trial = self._trials.get((size, degree), 0 if str(degree) not in steps else TRIAL_STEPS)
        before = steps.get(str(degree), step_s)
        if trial >= TRIAL_STEPS:
            steps[str(degree)] = before + NEWEST * (step_s - before)
            return False
        steps[str(degree)] = min(before, step_s)
        self._trials[size, degree] = trial + 1
        return trial + 1 == TRIAL_STEPS

    def step_s(self, size: Size) -> float | None:
        """Return the time of a step alone at degree 1; None before any was seen."""
        return self._steps.get(_key(size), {}).get("1")

    def curve(self, size: Size, workers: int, also: Collection[int] = ()) -> Curve:
        """Return speedups for degrees up to `workers`: powers of two, all workers, and `also`."""
        steps = self._steps.get(_key(size), {})
        alone = steps.get("1")
        speedups = {}
        for degree in {d for d, _ in PUBLIC_CURVE.speedups if d <= workers} | {workers, *also}:
            seen = steps.get(str(degree))
            measured = alone / seen if alone is not None and seen is not None else None
            speedups[degree] = measured if measured is not None else _published(degree)
        return Curve.of({**speedups, 1: 1.0})

    def measured(self, size: Size, most: int) -> Curve | None:
        """Return speedups of the degrees up to `most` that were measured; None without degree 1."""
        steps = self._steps.get(_key(size), {})
        alone = steps.get("1")
        if alone is None:
            return None
        return Curve.of({int(d): alone / s for d, s in steps.items() if int(d) <= most} | {1: 1.0})

    def save(self) -> None:
        """Write the file; a full disk costs the next start its knowledge, nothing more."""
        with contextlib.suppress(OSError, ValueError):
            known = {}
            if self._path.exists():
                known = json.loads(self._path.read_text(encoding="utf-8"))
            text = json.dumps({**known, self._model: self._steps}, indent=2)
            self._path.write_text(text + "\n", encoding="utf-8")


def model_digest(folder: Path) -> str:
    """Name a model by its index, which has the digests of its files."""
    return hashlib.sha256((folder / "model_index.json").read_bytes()).hexdigest()


def _key(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _published(degree: int) -> float:
    """Return the published speedup, on the line between its neighbours where it has none."""
    points = PUBLIC_CURVE.speedups
    for (low, slow), (high, fast) in itertools.pairwise(points):
        if low <= degree <= high:
            return slow + (fast - slow) * (degree - low) / (high - low)
    return points[-1][1]
