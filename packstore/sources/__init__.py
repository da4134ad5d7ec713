"""Where samples come from: :func:`open_source` finds the kind of a source by itself.

Each kind lives in a file of its own, which is imported when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from packstore.core.errors import SourceError, UsageError, printable
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.base import Entry, Source, Survey

__all__ = ["KINDS", "Entry", "Source", "Survey", "open_source"]

KINDS = ("imagefolder", "flat", "cifar10", "cifar100", "store")
"""The kinds of sources."""

_HEADER = 1 << 20  # enough for the header of any image but one with a megabyte of metadata before it
_CIFAR = ("cifar10", "cifar100")


def open_source(
    path: str | os.PathLike[str], *, kind: str | None = None, labels: str | os.PathLike[str] | None = None
) -> Source:
    """Opens the source at ``path``: an image folder, a flat folder, CIFAR-10 or -100 (directory or ``.tar.gz``), or a
    packstore store.

    Args:
        path: A file or directory.
        kind: One of :data:`KINDS` to force that; None recognises it. Forced, ``imagefolder`` takes all top folders as
            classes where some look like splits and others hold images as well.
        labels: A CSV file with the columns ``file,label`` and optionally ``split``, paths relative to ``path``; the
            source is then ``flat``.

    Raises:
        UsageError: for an unknown kind, or for labels with a kind that has its own.
        SourceError: when there is nothing at ``path``, or nothing that is known.
    """
    source = Path(path)
    if kind is not None and kind not in KINDS:
        raise UsageError(f"unknown kind of source {kind!r}; kinds: {', '.join(KINDS)}")
    if labels is not None and kind not in (None, "flat"):
        raise UsageError(f"a labels file goes with a flat source; a source of kind {kind} has its own labels")
    try:
        source.stat()
    except (OSError, ValueError) as error:
        raise SourceError(_unreachable(source, error)) from None
    if labels is not None or kind == "flat":
        return _flat(source, None if labels is None else Path(labels))
    if kind == "store" or (kind is None and _is_store(source)):
        from packstore.sources.store import StoreSource

        return StoreSource(source)
    if kind is None or kind in _CIFAR:
        from packstore.sources.cifar import open_cifar

        cifar = open_cifar(source, kind)
        if cifar is not None:
            return cifar
    if not source.is_dir():
        _refuse_image(source)
        if _begin(source).startswith(_ARCHIVES):
            raise SourceError(
                f"{printable(str(path))} is an archive{_beginning(source)}, but not CIFAR as it was downloaded: unpack "
                "it, and give the folder"
            )
        raise SourceError(
            f"{printable(str(path))} is a file{_beginning(source)}, which is no source: give a folder of images, CIFAR "
            f"as a folder or .tar.gz, or a packstore store; kinds: {', '.join(KINDS)}"
        )
    if kind is None and not _has_folders_of_images(source):
        return _flat(source, None)
    from packstore.sources.imagefolder import ImageFolderSource

    return ImageFolderSource(source, all_classes=kind is not None)


def _flat(path: Path, labels: Path | None) -> Source:
    from packstore.sources.flat import FlatSource

    if not path.is_dir():
        _refuse_image(path)
        raise SourceError(f"{printable(str(path))} is a file{_beginning(path)}, not a folder of images")
    return FlatSource(path, labels)


def _unreachable(path: Path, error: OSError | ValueError) -> str:
    name = printable(str(path))
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"{name} is a link to nowhere: {printable(str(path.readlink()))} does not exist"
    return f"{name}: {printable(str(error)) if isinstance(error, ValueError) else error.strerror or error}"


def _refuse_image(path: Path) -> None:
    """Raises :class:`SourceError` where ``path`` is an image file."""
    try:
        sniff(_begin(path, _HEADER))
    except HeaderError:
        return
    raise SourceError(f"{printable(str(path))} is one image; give a folder of images")


def _has_folders_of_images(path: Path) -> bool:
    """Whether any folder below ``path`` holds an image; or, where there is no image at all, whether it has folders
    (the image folder then says which of them are empty)."""
    from packstore.sources.listing import ancestry, list_directory, walk

    place = str(path.absolute())
    root = list_directory(place)
    above = (*ancestry(place), root.identity)
    for name in sorted(root.directories):
        if any(listing.images for _, listing in walk(place, name, above)):
            return True
    return bool(root.directories) and not root.images


def _is_store(path: Path) -> bool:
    """Whether ``path`` has the outward form of a store; whether it is one is found when it is opened."""
    if path.is_dir():
        sharded = (path / "manifest.json").is_file() and any(path.glob("shard-00000.*"))
        return sharded or (path / "data.mdb").is_file()
    return _begin(path).startswith((b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"))


def _begin(path: Path, size: int = 8) -> bytes:
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None


_ARCHIVES = (b"\x1f\x8b\x08", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")
"""How gzip, zip, bzip2 and xz files begin."""


def _beginning(path: Path) -> str:
    begin = _begin(path)
    return f" that begins with {begin!r}" if begin else ""
