"""Where a run's curves may be shown as well: TensorBoard, W&B, trackio. Each is imported only when
it is chosen.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from spotlightd.errors import InputError

PNG_SIZE = struct.Struct(">II")
PNG_SIZE_AT = 16
"""Where a PNG file says its width and height."""


class Tracker(Protocol):
    """One destination. `iteration` is the step of all its curves."""

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None: ...
    def image(self, iteration: int, name: str, png: bytes) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files for `tensorboard --logdir`."""

    def __init__(self, folder: Path, run: str, config: Mapping[str, Any]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder / "tensorboard" / run))

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        # Groups of curves are what stands before a slash.
        rows = [
            Summary.Value(tag=name.replace(".", "/", 1), simple_value=value)
            for name, value in values.items()
        ]
        self._add(iteration, Summary(value=rows))

    def image(self, iteration: int, name: str, png: bytes) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = PNG_SIZE.unpack_from(png, PNG_SIZE_AT)
        picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
        self._add(iteration, Summary(value=[Summary.Value(tag=name, image=picture)]))

    def _add(self, iteration: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=iteration, summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLike:
    """Weights & Biases, or trackio, whose calls are the same."""

    def __init__(self, module: Any, run: str, **settings: Any) -> None:
        self._module = module
        self._run = module.init(project="spotlight", name=run, **settings)

    def scalars(self, iteration: int, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=iteration)

    def image(self, iteration: int, name: str, png: bytes) -> None:
        from io import BytesIO

        from PIL import Image

        picture = self._module.Image(Image.open(BytesIO(png)))
        self._module.log({name: picture}, step=iteration)

    def flush(self) -> None:
        """Both send by themselves."""

    def close(self) -> None:
        self._module.finish()


def open_tracker(name: str, folder: Path, run: str, config: Mapping[str, Any]) -> Tracker:
    """Return a tracker by name. Raises InputError where it is not installed."""
    try:
        match name:
            case "tensorboard":
                return TensorBoard(folder, run, config)
            case "wandb":
                import wandb

                return WandbLike(wandb, run, dir=str(folder), resume="allow", config=dict(config))
            case "trackio":
                import trackio

                return WandbLike(trackio, run, config=dict(config))
            case _:
                raise InputError(f"no tracker '{name}': there are tensorboard, wandb and trackio")
    except ImportError as error:
        raise InputError(
            f"telemetry.trackers names {name}, which is not installed ({error}): "
            f"pip install {name}, or leave it out"
        ) from None
