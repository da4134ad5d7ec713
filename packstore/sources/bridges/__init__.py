"""Bridges: sources that another library reads, such as ``torchvision:OxfordIIITPet:ROOT``.

A library reads data on this machine: bridges never download. Nothing is unpickled, unless the library has verified
the file by a checksum of its own before, as torchvision does for CIFAR. The library finds a dataset, and packstore's
own readers read it:

- ``torchvision:NAME:ROOT``: datasets of classes in ``torchvision.datasets``, which are read as map-style datasets.
  Arguments of the class follow the name: ``torchvision:EMNIST,split=letters:ROOT``.
- ``datasets:PATH``: a folder that ``load_dataset`` of Hugging Face takes, or that ``save_to_disk`` wrote;
  ``PATH:CONFIG`` is one of several configurations. Its Arrow files in the library's cache are read.
- ``tfds:NAME:DATA_DIR``: a dataset that TensorFlow Datasets has prepared. Its records are read, without TensorFlow.
- ``datumaro:FORMAT:PATH``: a dataset that Datumaro imports; ``auto`` is the format that it recognises. Read in
  Datumaro's own format, to which the library converts it.
- ``fiftyone:NAME``: a dataset of FiftyOne's database, read in the format of FiftyOne's exports.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import xxhash

from packstore.core.errors import UsageError, printable
from packstore.core.files import Location
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import SOURCES
from packstore.core.urls import BRIDGES, find_bridge
from packstore.sources.base import Entry, Source, SourceOptions, Survey, stamp_files
from packstore.sources.bridges.guard import explain_errors, restrict_library
from packstore.sources.dataset import DatasetSource
from packstore.sources.ledger import Claims
from packstore.sources.rows import in_packing_order
from packstore.sources.wrapped import WrappedSource
from packstore.stores.export_manifest import stays_in_folder

# Parameter that chooses a split, and its values, by the name of a torchvision dataset. Splits share no images.
_SPLITS: Mapping[str, tuple[str, str]] = {
    name: (parameter, splits)
    for parameter, splits, names in (
        ("", "", "EuroSAT ImageFolder SUN397"),
        ("train", "train test", "CIFAR10 CIFAR100 EMNIST FashionMNIST KMNIST MNIST QMNIST USPS"),
        ("split", "train val test", "DTD FGVCAircraft Flowers102 PCAM RenderedSST2"),
        ("split", "train val", "ImageNet Imagenette"),
        ("split", "train-standard val", "Places365"),
        ("split", "train test", "FER2013 Food101 GTSRB STL10 StanfordCars SVHN"),
        ("split", "train valid test", "Country211"),
        ("split", "trainval test", "OxfordIIITPet"),
    )
    for name in names.split()
}
# Beginnings of the names of datasets of pickles whose class verifies MD5 digests of the files before it opens them.
_CHECKED = ("CIFAR10:", "CIFAR100:", "CIFAR10,", "CIFAR100,")
# A source, and its stamp if its files are new in each run; else None.
Opened = tuple[Source, str | None]


def open_bridge(path: str | os.PathLike[str], options: SourceOptions) -> Source:
    """Opens a source with the library that its name begins with. Blocks connections and unpickling meanwhile, and
    discards what the library prints on standard output.

    Raises:
        UsageError: The library is not installed, the name has another form than in
            :data:`packstore.core.urls.BRIDGES`, or nothing exists at its path. Also for the option ``layout`` with
            another library than ``datasets``.
        SourceError: The library cannot read the source, would unpickle it, or would connect to another machine.
    """
    named = find_bridge(path)
    assert named is not None
    library, rest = named
    if options.layout is not None and library != "datasets":
        raise UsageError(f"{printable(str(path))}: layout is for tables with boxes, and {library} reads none")
    folder = Path(mkdtemp(prefix="packstore-bridge-"))
    try:
        with (
            redirect_stdout(io.StringIO()),
            restrict_library(library, unpickles=library == "torchvision" and rest.startswith(_CHECKED)),
            explain_errors(library, printable(str(path))),
        ):
            source, stamp = _OPENERS[library](rest, options, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return BridgeSource(Path(path), source, folder, stamp)


class BridgeSource(WrappedSource):
    """Source of data that a library has found, under the name that the user gave.

    The folder has the annotations that the library has converted, and links to the files of images. :meth:`close`
    removes it."""

    def __init__(self, path: Path, source: Source, folder: Path, stamp: str | None) -> None:
        """``stamp``: replaces that of ``source``, whose files are new at each opening; None keeps it."""
        super().__init__(source, source.options)
        self.path = path
        self._folder, self._stamp = folder, stamp
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, True)

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Surveys the data. The ledger has no files, only the number of values that are left out."""
        survey: Survey = self._source.survey(split, progress)
        return replace(survey, ledger=self.ledger(Claims(), split))

    def list_all_files(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists no files: the library does not tell which it has read."""
        return iter(())

    def stamp(self) -> str:
        """Returns the given stamp, else that of the wrapped source."""
        return self._source.stamp() if self._stamp is None else self._stamp

    def nbytes(self, entry: Entry) -> int:
        """Estimates the bytes of an entry, by the wrapped source."""
        return self._source.nbytes(entry)

    def locate(self, entry: Entry) -> Location | None:
        """Locates the image in the file behind a link; None for an image that lies in the folder itself."""
        place: Location | None = self._source.locate(entry)
        if place is None or not Path(place.path).is_relative_to(self._folder):
            return place
        link = Path(place.path)
        return place._replace(path=str(link.resolve())) if link.is_symlink() else None

    def close(self) -> None:
        """Closes the wrapped source, and removes the folder."""
        self._source.close()
        self._remove_folder()


def _open_torchvision(rest: str, options: SourceOptions, folder: Path) -> Opened:
    """Opens all splits of a torchvision dataset, or the split that the arguments choose."""
    called, root = _split_name_and_path(rest, "torchvision")
    name, *given = called.split(",")
    from torchvision import datasets

    if name not in _SPLITS:
        raise UsageError(
            f"torchvision:{printable(name)} is not one of the datasets of classes that torchvision reads here "
            f"({', '.join(sorted(_SPLITS))}): give packstore the folder itself, {printable(str(root))}"
        )
    arguments = dict(map(_parse_argument, given))
    parameter, splits = _SPLITS[name]
    parts: dict[str, Any] = {}
    for split in splits.split():
        parts[split.removesuffix("-standard")] = split == "train" if parameter == "train" else split
    if parameter in arguments:
        chosen = arguments[parameter]
        parts = {next((split for split, value in parts.items() if value == chosen), str(chosen)): chosen}
    made = getattr(datasets, name)
    data = {split: made(root=str(root), **{**arguments, parameter: parts[split]}) for split in in_packing_order(parts)}
    data = data or {"": made(root=str(root), **arguments)}
    return DatasetSource(data, options, encoding="uint8", further="uint8"), None


def _parse_argument(text: str) -> tuple[str, Any]:
    """Splits ``name=value``; the value is a number or truth value of JSON, or else a text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value.lower())
    except ValueError:
        return name, value


def _open_datasets(rest: str, options: SourceOptions, folder: Path) -> Opened:
    """Loads the dataset of a folder, or of ``FOLDER:CONFIG``, with all its splits."""
    place, _, config = rest.rpartition(":")
    if not place or Path(rest).exists() or not Path(place).is_dir():
        place, config = rest, ""
    path = _require_path(place)
    import datasets

    if int(datasets.__version__.partition(".")[0]) < 4:
        raise UsageError(f"datasets {datasets.__version__} runs scripts that it finds: pip install 'datasets>=4'")
    is_saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    loaded = datasets.load_from_disk(place) if is_saved else datasets.load_dataset(place, config or None)
    splits = loaded if isinstance(loaded, dict) else {"": loaded}
    if any(data._indices is not None or not data.cache_files for data in splits.values()):
        raise UsageError(f"{printable(place)} has chosen or shuffled rows: flatten_indices() and save it again")
    # Links to the files make a folder as save_to_disk writes it.
    files: list[Path] = []
    for split, data in splits.items():
        names = []
        for file in data.cache_files:
            names.append({"filename": f"{len(files):05}.arrow"})
            files.append(Path(file["filename"]))
            _link_file(folder, str(Path(split, names[-1]["filename"])), files[-1])
        (folder / split / "state.json").write_text(json.dumps({"_data_files": names}))
    if isinstance(loaded, dict):
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*splits]}))
    return SOURCES["arrow"].open(folder, options), stamp_files(files)


def _open_tfds(rest: str, options: SourceOptions, folder: Path) -> Opened:
    """Opens the folder of the dataset ``name/config:version``."""
    name, _, data_dir = rest.rpartition(":")
    if not name:
        raise UsageError(f"tfds:{printable(rest)}: write {BRIDGES['tfds']}")
    _require_path(data_dir)
    from tensorflow_datasets.core import read_only_builder

    builder = read_only_builder.builder_from_files(name, data_dir=data_dir)
    return SOURCES["tfds"].open(Path(builder.data_path), options), None


def _open_datumaro(rest: str, options: SourceOptions, folder: Path) -> Opened:
    """Imports a dataset in its named format, or for ``auto`` in the format that Datumaro detects."""
    name, path = _split_name_and_path(rest, "datumaro")
    from datumaro.components.dataset import Dataset
    from datumaro.components.media import Image

    data = Dataset.import_from(str(path), Dataset.detect(str(path)) if name == "auto" else name)
    if not issubclass(data.media_type(), Image):
        raise UsageError(f"datumaro:{printable(rest)} holds {data.media_type().__name__}; bridges read images")
    data.export(str(folder), "datumaro", save_media=False)
    digest = xxhash.xxh3_128()
    for file in sorted((folder / "annotations").glob("*.json")):
        content = json.loads(file.read_bytes())
        for each in content["items"]:
            item = data.get(each["id"], file.stem)
            suffix = Path(getattr(item.media, "path", None) or ".png").suffix or ".png"
            each["image"] = {**each.get("image", {}), "path": f"images/{file.stem}/{item.id}{suffix}"}
            _write_image(folder, each["image"]["path"], item.media)
        text = json.dumps(content)
        file.write_text(text)
        digest.update(text.encode())
    return SOURCES["datumaro"].open(folder, options), digest.hexdigest()


def _write_image(folder: Path, name: str, media: Any) -> None:
    """Links to the image file of Datumaro, or writes one for an image that is part of another file."""
    path = getattr(media, "path", None)
    if path and Path(path).is_file():
        _link_file(folder, name, Path(path))
    # An image without data gets no file, and is missing when it is read.
    elif media is not None and media.has_data:
        place = _prepare_path(folder, name)
        media.save(str(place))
        os.utime(place, (0, 0))  # the same entry at each opening


def _open_fiftyone(rest: str, options: SourceOptions, folder: Path) -> Opened:
    """Loads all samples of a dataset, without FiftyOne's usage reports."""
    os.environ.setdefault("FIFTYONE_DO_NOT_TRACK", "true")  # else its import reports to its makers
    import fiftyone

    data = fiftyone.load_dataset(rest)
    if data.media_type != "image":
        raise UsageError(f"fiftyone:{printable(rest)} holds {data.media_type}; bridges read images")
    samples = [json.loads(sample.to_json()) for sample in data.iter_samples()]
    above = os.path.commonpath([Path(sample["filepath"]).parent for sample in samples]) if samples else ""
    for sample in samples:
        file = Path(sample["filepath"])
        sample["filepath"] = f"data/{file.relative_to(above).as_posix()}"
        _link_file(folder, sample["filepath"], file)
    classes = dict.fromkeys(chain(data.default_classes, *data.classes.values()))
    text = json.dumps({"samples": samples, "classes": [*classes]})
    (folder / "samples.json").write_text(text)
    return SOURCES["fiftyone"].open(folder, options), xxhash.xxh3_128_hexdigest(text.encode())


def _split_name_and_path(rest: str, library: str) -> tuple[str, Path]:
    """Splits ``NAME:PATH`` into name and path."""
    name, colon, path = rest.partition(":")
    if not (name and colon and path):
        raise UsageError(f"{library}:{printable(rest)}: write {BRIDGES[library]}")
    return name, _require_path(path)


def _require_path(path: str) -> Path:
    """Converts a text to a path."""
    if not Path(path).exists():
        raise UsageError(f"{printable(path)}: no such file or directory on this machine")
    return Path(path)


def _prepare_path(folder: Path, name: str) -> Path:
    """Returns the path of a file in a folder, and makes the folders above it. Raises :class:`UsageError` if the name
    leads out of the folder.
    """
    if not stays_in_folder(name):
        raise UsageError(f"the dataset has an image {printable(name)}, whose name leads out of its folder")
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _link_file(folder: Path, name: str, file: Path) -> None:
    """Makes a link to a file in a folder."""
    _prepare_path(folder, name).symlink_to(file.absolute())


# Functions that open a dataset by the text after the library's name. They may write annotations, and links to images,
# to the given empty folder.
_OPENERS: Mapping[str, Callable[[str, SourceOptions, Path], Opened]] = {
    "torchvision": _open_torchvision,
    "datasets": _open_datasets,
    "tfds": _open_tfds,
    "datumaro": _open_datumaro,
    "fiftyone": _open_fiftyone,
}
