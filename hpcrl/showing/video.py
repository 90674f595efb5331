"""A video as an animated picture, by Pillow."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hpcrl.config import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

_ENDINGS = (".gif", ".webp")
_MOST_FRAMES = 3000
"""Which wait in memory, a byte per pixel; a minute at 50 per second."""
_MOST_PER_S = 50
"""Programs show a GIF that has more slowly."""
_COLORS = 128


class Film:
    """Takes pictures and writes them as one file. Local.

    Attributes:
        path: the file.
        frames: pictures taken in.
        whole: False once there were more than a file takes.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for another ending than .gif or .webp, a folder that is not there, a missing Pillow."""
        if path.suffix not in _ENDINGS:
            raise ConfigError(f"--video {str(path)!r}: the name must end in {' or '.join(_ENDINGS)}")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--video {str(path)!r}: there is no folder {path.absolute().parent}")
        if find_spec("PIL") is None:
            raise ConfigError('--video needs Pillow; pip install "hpcrl[video]"')
        self.path, self.whole = path, True
        self._images: list[Image] = []

    @property
    def frames(self) -> int:
        """Pictures taken in."""
        return len(self._images)

    def add(self, frame: npt.NDArray[np.uint8]) -> None:
        """Take in a picture, uint8 [H, W, 3], which is copied; of too many the first stay."""
        from PIL import Image

        if len(self._images) == _MOST_FRAMES:
            self.whole = False
            return
        image = Image.fromarray(np.ascontiguousarray(frame))
        self._images.append(image.quantize(_COLORS, method=Image.Quantize.FASTOCTREE))

    def write(self, frames_per_s: float) -> None:
        """Write the file, to be shown at so many pictures per second. Raises ConfigError where it cannot be written."""
        step = max(1, math.ceil(frames_per_s / _MOST_PER_S))
        first, *others = self._images[::step]
        duration_ms = round(1000 * step / frames_per_s)
        try:
            first.save(
                self.path, save_all=True, append_images=others, duration=duration_ms, loop=0, lossless=True
            )
        except OSError as error:
            raise ConfigError(f"--video {str(self.path)!r} cannot be written: {error}") from error
