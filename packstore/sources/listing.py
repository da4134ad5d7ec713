"""Lists folders of images: which files are images, which are left out and why, and the order.

The order is that of torchvision's ``ImageFolder`` (``torchvision/datasets/folder.py``, ``make_dataset``):
directories sorted by their whole path as ``sorted(os.walk(directory, followlinks=True))`` does, then files sorted by
name.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import printable
from packstore.images.sniff import UNREAD_SUFFIXES
from packstore.sources.folder_names import is_directory

IMAGE_SUFFIXES = (
    # torchvision.datasets.folder.IMG_EXTENSIONS
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    # and beyond it
    *(".gif", ".jpe", ".jfif", ".avif", ".heic", ".heif", ".hif", ".jp2", ".j2k", ".jpx", ".jpf"),
    *(".jxl", ".exr", ".hdr"),
)
"""Suffixes of image files, in any case. Reading an image finds out if its content is of another kind."""

ARRAY = ".npy"
"""Suffix of numpy's arrays: images in a folder without other images; else data about the images."""

SAMPLE_SUFFIXES = (*IMAGE_SUFFIXES, *UNREAD_SUFFIXES)
# Suffixes of files that are not opened to test if they are images.
_OTHERS = (
    *(".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini", ".md", ".html", ".log"),
    *(".py", ".sh", ".ipynb", ".npy", ".npz", ".mat", ".pkl", ".pth", ".pt", ".h5", ".hdf5", ".mdb", ".db", ".parquet"),
    *(".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".7z", ".rec", ".idx", ".lst", ".cls", ".pdf", ".mp4", ".avi"),
)

# Files and directories, in lower case, that operating systems and Python leave in folders. Those with a dot are hidden
# anyway.
SYSTEM_NAMES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found", "__pycache__"})

_MAX_REASONS = 40

# Size of a pipe, a socket or a device, which is never opened.
NO_FILE = -1

# Size of a link to a folder that contains it.
CYCLE = -2

Identity = tuple[int, int]
"""``(st_dev, st_ino)`` of a directory."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Images and subdirectories of one directory.

    Attributes:
        identity: Device and inode of the directory, the same for every path to it.
        images: Names of the images, sorted.
        sizes: Sizes of the images; 0 for a broken link, :data:`NO_FILE` for a pipe, a socket or a device.
        modified: Times of modification of the images in nanoseconds; 0 without a size.
        changed: Times of change of the images; 0 without a size.
        directories: Names of the subdirectories, unsorted.
    """

    identity: Identity
    images: list[str]
    sizes: list[int]
    modified: list[int]
    changed: list[int]
    directories: list[str]

    @classmethod
    def of_cycle(cls, identity: Identity, name: str) -> Listing:
        """Makes the listing of a link to a folder that contains the link. The link ``name`` is its only file, with size
        :data:`CYCLE`."""
        return cls(identity, [name], [CYCLE], [0], [0], [])

    @property
    def is_cycle(self) -> bool:
        """True for a listing from :meth:`of_cycle`, see :meth:`packstore.sources.tree.Tree.walk`."""
        return self.sizes == [CYCLE]


def list_folders(path: Path) -> list[Path]:
    """Lists the folders in a folder, hidden ones included, sorted by path. Calls no ``stat`` for files. Raises
    :class:`OSError` if the folder cannot be listed."""
    with os.scandir(path) as entries:
        return sorted(path / entry.name for entry in entries if is_directory(entry))


def is_passed_over(name: str) -> bool:
    """Tells if a file or directory is hidden, or has a name of :data:`SYSTEM_NAMES`."""
    return name[0] == "." or name.lower() in SYSTEM_NAMES


def is_image_name(name: str) -> bool | None:
    """Tells by its name if a file is an image. True also for formats that packstore does not read. False for hidden and
    system files. Returns None if the first bytes must decide."""
    lower = name.lower()
    if lower.endswith(SAMPLE_SUFFIXES):
        return name[0] != "."
    return False if is_passed_over(name) or lower.endswith(_OTHERS) else None


def skip_reason(name: str) -> str:
    """Returns the reason why a file or directory of this name is left out.

    ``hidden``, ``system files``, ``not images (.txt)`` or ``not images (no extension)``. Extensions of more than 12
    characters count as none.
    """
    if name[0] == ".":
        return "hidden"
    if name.lower() in SYSTEM_NAMES:
        return "system files"
    stem, dot, suffix = name.rpartition(".")
    named = bool(stem and dot and suffix and len(suffix) <= 12)
    return f"not images (.{printable(suffix.lower())})" if named else "not images (no extension)"


def count_reason(reason: str, counts: Counter[str]) -> None:
    """Counts a reason. After forty reasons, counts new ones as ``not images (other)``."""
    # Numbered suffixes could fill the memory.
    counts[reason if reason in counts or len(counts) < _MAX_REASONS else "not images (other)"] += 1


# Advice about a source without images.
NO_SOURCE = "give a folder of images (.jpg, .png …), or another source (see packstore guide sources)"


def no_images_message(name: str, ignored: Counter[str], advice: str) -> str:
    """Returns the message about a folder without images. ``name`` is printable. The message has the five most frequent
    reasons for leaving entries out, and ``advice``."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in ignored.most_common(5))
    return f"{name} holds no images{f' (passed over: {reasons})' if reasons else ''}: {advice}"


IS_CYCLE = "is a link to a folder that contains it, a cycle"


def key_size(key: str) -> int:
    """Returns the bytes of a key in a store: UTF-8, with undecodable bytes unchanged."""
    return len(key) if key.isascii() else len(key.encode("utf-8", "surrogateescape"))
