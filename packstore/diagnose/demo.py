"""Generates a small image folder to experiment with: files of every common image format, with typical oddities.

The pictures of different classes look different, and have grain, so that the files compress like photographs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw

from packstore.core.errors import DestinationError

SPLITS = ("train", "val")
_SEED = 2026
_SIDES = (90, 128, 160, 200, 256)
_OVERSAMPLING = 3  # shapes are drawn larger and reduced, so that their edges are smooth
_GRAIN = 6.0  # standard deviation of the noise, in steps of 255

Colour = tuple[int, int, int]


def make_demo(path: Path, *, images_per_class: int = 18) -> None:
    """Writes an image folder ``path/{train,val}/class/file`` with four classes. If this fails, removes the images
    again.

    Each class has ``images_per_class`` images in ``train``, and a third as many in ``val``, at least one. The same
    arguments give the same pictures.

    The formats alternate: JPEG (4:4:4, 4:2:0, progressive, grayscale, CMYK, rotated by EXIF), PNG (RGB, opaque RGBA,
    palette, grayscale), BMP, WebP, TIFF, GIF. The first class has three more files, which real folders have, too: a PNG
    with the suffix ``.JPEG``, a hidden file, and ``Thumbs.db``.

    Raises:
        ValueError: ``images_per_class`` is less than 1.
        DestinationError: ``path`` is a file or a directory that is not empty, or cannot be written.
    """
    if images_per_class < 1:
        raise ValueError(f"images_per_class must be at least 1, got {images_per_class}")
    try:
        existed = path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise DestinationError(f"{path} is not empty: name a directory that is empty or does not exist yet")
        try:
            # Inside the directory and not beside it: an empty directory may be somebody's working directory.
            with tempfile.TemporaryDirectory(prefix=".packstore-demo-", dir=path) as staging:
                _write_images(Path(staging), images_per_class)
                for split in SPLITS:
                    (Path(staging) / split).rename(path / split)
        except BaseException:
            if existed:
                for split in SPLITS:
                    shutil.rmtree(path / split, ignore_errors=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
            raise
    except FileExistsError:
        raise DestinationError(f"{path} is a file: name a directory that is empty or does not exist yet") from None
    except OSError as error:
        raise DestinationError(f"cannot write the demo to {path}: {error.strerror or error}") from error


def _write_images(root: Path, images_per_class: int) -> None:
    """Writes all images below ``root``, and a misnamed image and two files that are not images."""
    turn = 0
    for split_number, split in enumerate(SPLITS):
        # ``val`` has a third as many images as ``train``.
        count = images_per_class if split_number == 0 else max(1, images_per_class // 3)
        for class_number, (name, shapes) in enumerate(_CLASSES.items()):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                rng = np.random.default_rng((_SEED, split_number, class_number, number))
                suffix, save = _FORMATS[turn % len(_FORMATS)]
                turn += 1
                save(_draw_picture(shapes, rng), folder / f"{name}-{number:03d}{suffix}")
    name, shapes = next(iter(_CLASSES.items()))
    folder = root / SPLITS[0] / name
    # ImageNet has such a file: a PNG with the suffix .JPEG.
    _draw_picture(shapes, np.random.default_rng(_SEED)).save(folder / f"{name}-misnamed.JPEG", format="PNG")
    (folder / ".hidden").write_bytes(b"not an image\n")
    (folder / "Thumbs.db").write_bytes(b"not an image either\n")


# --- pictures: a gradient, the shapes of the class on it, and grain ---------------------------------------------------


@dataclass(frozen=True)
class _DrawingSurface:
    """Drawing surface with its size and random generator."""

    draw: ImageDraw.ImageDraw
    width: int
    height: int
    rng: Generator

    def random_colour(self) -> Colour:
        """Returns a random RGB colour."""
        r, g, b = (int(v) for v in self.rng.integers(0, 256, 3))
        return r, g, b

    def random_point(self) -> tuple[float, float]:
        """Returns a random point on the surface."""
        return float(self.rng.uniform(0, self.width)), float(self.rng.uniform(0, self.height))

    def random_length(self, smallest: float, largest: float) -> float:
        """Returns a random length between two shares of the shorter side."""
        return float(self.rng.uniform(smallest, largest)) * min(self.width, self.height)


def _draw_picture(shapes: Callable[[_DrawingSurface], None], rng: Generator) -> Image.Image:
    """Draws a picture of random size: a random gradient, shapes on it, and grain."""
    width, height = (int(side) for side in rng.choice(_SIDES, 2))
    corners = rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)
    large = (width * _OVERSAMPLING, height * _OVERSAMPLING)
    image = Image.fromarray(corners).resize(large, Image.Resampling.BICUBIC)
    shapes(_DrawingSurface(ImageDraw.Draw(image), *large, rng))
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BOX), dtype=np.float32)
    grainy = pixels + rng.normal(0, _GRAIN, pixels.shape).astype(np.float32)
    return Image.fromarray(np.clip(np.rint(grainy), 0, 255).astype(np.uint8))


def _draw_discs(surface: _DrawingSurface) -> None:
    """Draws 4 to 9 discs."""
    for _ in range(int(surface.rng.integers(4, 10))):
        (x, y), r = surface.random_point(), surface.random_length(0.06, 0.25)
        surface.draw.ellipse((x - r, y - r, x + r, y + r), fill=surface.random_colour())


def _draw_rings(surface: _DrawingSurface) -> None:
    """Draws rings of two colours around a point, to beyond the corners."""
    (x, y), step = surface.random_point(), surface.random_length(0.06, 0.12)
    colours = surface.random_colour(), surface.random_colour()
    for turn in range(int((surface.width + surface.height) / step), 0, -1):
        r = turn * step
        surface.draw.ellipse((x - r, y - r, x + r, y + r), fill=colours[turn % 2])


def _draw_stripes(surface: _DrawingSurface) -> None:
    """Draws slanted stripes of one colour."""
    step, slope = surface.random_length(0.08, 0.2), float(surface.rng.uniform(-1, 1)) * surface.height
    colour = surface.random_colour()
    for left in np.arange(-surface.height, surface.width + surface.height, 2 * step):
        x, h = float(left), surface.height
        surface.draw.polygon(((x, 0), (x + step, 0), (x + step + slope, h), (x + slope, h)), fill=colour)


def _draw_triangles(surface: _DrawingSurface) -> None:
    """Draws 5 to 11 triangles."""
    for _ in range(int(surface.rng.integers(5, 12))):
        (x, y), r, turn = surface.random_point(), surface.random_length(0.1, 0.35), float(surface.rng.uniform(0, 120))
        surface.draw.regular_polygon((x, y, r), 3, rotation=turn, fill=surface.random_colour())


_CLASSES: dict[str, Callable[[_DrawingSurface], None]] = {
    "discs": _draw_discs,
    "rings": _draw_rings,
    "stripes": _draw_stripes,
    "triangles": _draw_triangles,
}


# --- formats ----------------------------------------------------------------------------------------------------------


def _make_jpeg_saver(
    mode: str = "RGB", *, subsampling: int = 2, progressive: bool = False, orientation: int | None = None
) -> Callable[[Image.Image, Path], None]:
    """Returns a function that saves a JPEG of quality 90."""

    def save(image: Image.Image, path: Path) -> None:
        """Saves the image in the chosen mode."""
        exif = Image.Exif()
        if orientation is not None:
            exif[0x0112] = orientation  # the pixels are not turned
        # Pillow's numbers of subsampling: 0 is 4:4:4, 2 is 4:2:0.
        image.convert(mode).save(
            path, format="JPEG", quality=90, subsampling=subsampling, progressive=progressive, exif=exif
        )

    return save


def _save_by_suffix(image: Image.Image, path: Path) -> None:
    """Saves the image in the format of the file's suffix."""
    image.save(path)


def _save_opaque_rgba(image: Image.Image, path: Path) -> None:
    """Adds an alpha channel of 255 to the image, in place, and saves it."""
    image.putalpha(255)
    image.save(path)


# Not more than the default number of images of a class, so that every class has every format.
_FORMATS: tuple[tuple[str, Callable[[Image.Image, Path], None]], ...] = (
    (".jpg", _make_jpeg_saver()),
    (".jpg", _make_jpeg_saver(subsampling=0)),
    (".png", _save_by_suffix),
    (".jpeg", _make_jpeg_saver(progressive=True)),
    (".jpg", _make_jpeg_saver("L")),
    (".png", _save_opaque_rgba),
    (".jpg", _make_jpeg_saver("CMYK")),
    (".png", lambda image, path: image.quantize(64).save(path)),
    (".webp", _save_by_suffix),
    (".png", lambda image, path: image.convert("L").save(path)),
    (".bmp", _save_by_suffix),
    (".gif", _save_by_suffix),
    (".tif", _save_by_suffix),
    (".JPEG", _make_jpeg_saver()),
    (".jpg", _make_jpeg_saver(orientation=6)),
)
