"""Registries of column types, formats, sources, exports and encodings by name. Each object is loaded on first use.

A plug-in adds one line: an entry point in the group named here, or a call of :meth:`Registry.register`. Importing this
module loads no objects and reads no entry points: the command line lists the built-in names in its help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Registry:
    """Objects by name: built-in objects, plug-ins from entry points, and objects that :meth:`register` adds.

    Loads an object on first use. Leaves out a plug-in with a built-in name, and logs a warning.

    Attributes:
        what: Noun for its objects, for messages: ``format``.
        group: Its group of entry points: ``packstore.formats``.
    """

    def __init__(self, what: str, group: str, base: str, built_in: dict[str, str], *, classes: bool = False) -> None:
        """``built_in`` maps each name to the location of its object, ``package.module:attribute``.

        Plug-ins must be instances of the class at the location ``base``. With ``classes``, they must be subclasses of
        it.
        """
        self.what = what
        self.group = group
        self._base, self._classes = base, classes
        self._places = built_in
        self._objects: dict[str, Any] = {}
        self._found: dict[str, EntryPoint] | None = None
        self._broken: set[str] = set()

    def register(self, name: str, value: Any) -> None:
        """Adds ``value`` under a name, or replaces the object of that name. Does not check its class."""
        self._objects[name] = value

    def unregister(self, name: str) -> None:
        """Removes an object that :meth:`register` has added. A built-in object or plug-in is loaded again on its next
        use.

        Raises :class:`KeyError` if nothing is registered or loaded under this name.
        """
        del self._objects[name]

    def __getitem__(self, name: str) -> Any:
        """Returns the object with this name; loads it on first use.

        Raises :class:`UsageError` for an unknown name, and for a plug-in that does not load.
        """
        if name not in self._objects:
            self.check(name)
            if name in self._places:
                self._objects[name] = _import_object(self._places[name])
            else:
                self._objects[name] = self._load_plugin(self._read_entry_points()[name])
        return self._objects[name]

    def check(self, name: str) -> None:
        """Raises :class:`UsageError`, with a list of all names, if ``name`` is unknown. Loads no objects."""
        if name not in self:
            raise UsageError(f"unknown {self.what} {printable(name)!r}; use one of: {', '.join(self)}")

    def __contains__(self, name: object) -> bool:
        """Tells if a name is known, also that of a plug-in that does not load. Loads no objects."""
        return name in self._places or name in self._objects or name in self._read_entry_points()

    def __iter__(self) -> Iterator[str]:
        """Yields all names, built-in names first; reads the entry points after those."""
        yield from self._places
        yield from (n for n in dict.fromkeys([*self._read_entry_points(), *self._objects]) if n not in self._places)

    def values(self, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Any]:
        """Yields the objects whose names are ``wanted``, built-in objects first. Loads each when the loop reaches it.

        Skips plug-ins that do not load, and logs one warning for each.
        """
        for name in self:
            if name not in self._broken and wanted(name):
                try:
                    value = self[name]
                except UsageError as error:
                    # A plug-in that does not load must not stop the others, and is reported once.
                    self._broken.add(name)
                    _log_warning(f"{error}; continuing without it")
                else:
                    yield value

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of packstore's own objects; reads no entry points."""
        return tuple(self._places)

    def _read_entry_points(self) -> dict[str, EntryPoint]:
        """Returns the group's entry points by name, without those that have a built-in name; reads them once."""
        if self._found is None:
            from importlib.metadata import entry_points  # 30 ms, which no help text needs

            points = entry_points(group=self.group)
            # A plug-in cannot replace what packstore has itself.
            self._found = {point.name: point for point in points if point.name not in self._places}
            for point in points:
                if point.name in self._places:
                    _log_warning(self._describe_clash(point))
        return self._found

    def check_plugins(self) -> Iterator[tuple[str, str, str | None]]:
        """Loads the plug-ins of all entry points; yields name, distribution and problem of each.

        The problem is a built-in name, an error of loading or a wrong class; None if there is no problem.
        """
        from importlib.metadata import entry_points

        for point in entry_points(group=self.group):
            problem = self._describe_clash(point) if point.name in self._places else None
            try:
                self._load_plugin(point)
            except UsageError as error:
                problem = problem or str(error)
            yield point.name, point.dist.name if point.dist is not None else "", problem

    def _load_plugin(self, point: EntryPoint) -> Any:
        """Imports the object of an entry point; raises :class:`UsageError` if that fails or its class is wrong."""
        try:
            value = point.load()
        except Exception as error:
            raise UsageError(
                f"{self._name_plugin(point)} does not load: {printable(str(error))}; repair or uninstall it"
            ) from error
        base = _import_object(self._base)
        if not (isinstance(value, type) and issubclass(value, base) if self._classes else isinstance(value, base)):
            expected = f"{'a subclass' if self._classes else 'an object'} of {self._base.replace(':', '.')}"
            named = self._name_plugin(point)
            raise UsageError(f"{named} is {printable(repr(value))} and should be {expected}; repair or uninstall it")
        return value

    def _describe_clash(self, point: EntryPoint) -> str:
        """Returns the message about a plug-in with a built-in name."""
        return f"{self._name_plugin(point)} is not used: packstore has one of that name itself; rename or uninstall it"

    def _name_plugin(self, point: EntryPoint) -> str:
        """Returns the name of a plug-in and of its distribution, for a message."""
        of = f" of {point.dist.name}" if point.dist is not None else ""
        return f"the plug-in {printable(point.name)!r}{of} ({self.what})"


def _import_object(place: str) -> Any:
    """Imports the object at ``package.module:attribute``."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def import_and_call(place: str) -> Any:
    """Returns a static method that imports the object at ``package.module:attribute`` and calls it."""
    return staticmethod(lambda *arguments, **keywords: _import_object(place)(*arguments, **keywords))


def _list_at(place: str, names: str) -> dict[str, str]:
    """Returns the location of each name: ``place`` with the name in lower case, capitals or capitalized."""
    return {name: place.format(name=name, NAME=name.upper(), Name=name.capitalize()) for name in names.split()}


def notebook_html(thing: object) -> str:
    """Returns the HTML that a notebook shows for a store, a dataset or a loader. Imports the room ``seeing``."""
    html: str = _import_object("packstore.seeing.notebook:render_html")(thing)
    return html


def _log_warning(message: str) -> None:
    """Logs a warning."""
    import logging  # which no help text needs

    logging.getLogger(__name__).warning("%s", message)


COLUMN_TYPES = Registry(
    "column type",
    "packstore.column_types",
    "packstore.core.column_types.base:ColumnType",
    {
        **_list_at("packstore.core.column_types.pictures:{NAME}", "image images mask"),
        **_list_at("packstore.core.column_types.numbers:{NAME}", "label labels boxes keypoints"),
        **_list_at("packstore.core.column_types.segments:{NAME}", "segments"),
        **_list_at("packstore.core.column_types.objects:{NAME}", "text json bytes"),
        **_list_at("packstore.core.column_types.numbers:{NAME}", "array"),
        **_list_at("packstore.core.column_types.pictures:{NAME}", "volume clip"),
    },
)
"""Types of columns: objects of :class:`packstore.core.column_types.base.ColumnType`."""

FORMATS = Registry(
    "format",
    "packstore.formats",
    "packstore.stores.format:Format",
    _list_at("packstore.stores.{name}:FORMAT", "lmdb hdf5 pth"),
)
"""Containers: objects of :class:`packstore.stores.format.Format`."""

SOURCES = Registry(
    "kind of source",
    "packstore.sources",
    "packstore.sources.base:Kind",
    {
        **_list_at("packstore.sources.{name}:KIND", "store exported"),
        **_list_at("packstore.sources.records.{name}:KIND", "tfds tfrecord"),
        "arrayrecord": "packstore.sources.records.tfrecord:ARRAYRECORD",
        **_list_at("packstore.sources.records.{name}:KIND", "recordio mds litdata beton"),
        **_list_at("packstore.sources.arrays.published:{NAME}", "cifar10 cifar100"),
        **_list_at("packstore.sources.lmdbs:{NAME}", "lsun folder2lmdb ocr basicsr caffe"),
        "idx": "packstore.sources.arrays.idx:KIND",
        **_list_at("packstore.sources.arrays.published:{NAME}", "svhn imagenet32"),
        "hdf5": "packstore.sources.arrays.chunked:HDF5",
        **_list_at("packstore.sources.arrays.files:{NAME}", "npz mat"),
        "zarr": "packstore.sources.arrays.chunked:ZARR",
        **_list_at("packstore.sources.{name}:KIND", "webdataset coco yolo"),
        **_list_at("packstore.sources.huggingface.files:{NAME}", "arrow parquet"),
        **_list_at(
            "packstore.sources.named.sets:{name}",
            "ilsvrc tinyimagenet cub200 flowers102 food101 oxfordpet stanfordcars "
            "stanforddogs fgvcaircraft visa sun397 dtd eurosat places365 celeba ade20k gtsrb",
        ),
        "stl10": "packstore.sources.arrays.published:STL10",
        **_list_at("packstore.sources.named.published:{NAME}", "market1501 dukemtmc mars omniglot"),
        "voc": "packstore.sources.annotation_formats.voc:voc",
        "labelme": "packstore.sources.annotation_formats.tools:labelme",
        "cvat": "packstore.sources.annotation_formats.videos:cvat",
        **_list_at("packstore.sources.annotation_formats.tools:{name}", "via label_studio"),
        "kitti": "packstore.sources.annotation_formats.published:kitti",
        **_list_at(
            "packstore.sources.annotation_formats.tools:{name}",
            "createml datumaro fiftyone imglab supervisely vott",
        ),
        **_list_at(
            "packstore.sources.annotation_formats.published:{name}",
            "sa1b dota visdrone widerface bdd100k crowdhuman",
        ),
        **_list_at("packstore.sources.annotation_formats.videos:{name}", "mot mots"),
        **_list_at("packstore.sources.annotation_formats.texts:{name}", "icdar mlt sroie cord textocr art"),
        **_list_at("packstore.sources.annotation_formats.published:{name}", "line_boxes openmmlab"),
        **_list_at("packstore.sources.annotation_formats.texts:{name}", "wildreceipt funsd"),
        "published": "packstore.sources.named.published:PUBLISHED",
        "hf_imagefolder": "packstore.sources.huggingface.imagefolder:KIND",
        "conversations": "packstore.sources.conversations:KIND",
        **_list_at("packstore.sources.captions:{NAME}", "captions caption_files"),
        "pixel_table": "packstore.sources.table.pixels:KIND",
        "table": "packstore.sources.table:KIND",
        **_list_at("packstore.sources.medical.{name}:KIND", "dicom nifti"),
        **_list_at("packstore.sources.{name}:KIND", "companions imagefolder flat"),
    },
)
"""Kinds of sources: objects of :class:`packstore.sources.base.Kind`. A path is tried with each in this order."""

EXPORTS = Registry(
    "kind of export",
    "packstore.exports",
    "packstore.exports.base:Export",
    {
        "imagefolder": "packstore.exports.folder:ImageFolderExport",
        **_list_at("packstore.exports.archives:{Name}Export", "tar zip"),
        "webdataset": "packstore.exports.archives:WebDatasetExport",
        "tfds": "packstore.exports.records:TfdsExport",
        "parquet": "packstore.exports.parquet:ParquetExport",
        "recordio": "packstore.exports.records:RecordioExport",
        **_list_at("packstore.exports.arrays:{Name}Export", "npz hdf5 zarr"),
        "coco": "packstore.exports.labels.documents:CocoExport",
        **_list_at("packstore.exports.labels.sidecars:{Name}Export", "yolo voc kitti"),
        "labelme": "packstore.exports.labels.sidecars:LabelMeExport",
        "cvat": "packstore.exports.labels.documents:CvatExport",
        "label_studio": "packstore.exports.labels.documents:LabelStudioExport",
        "datumaro": "packstore.exports.labels.documents:DatumaroExport",
        "fiftyone": "packstore.exports.labels.documents:FiftyOneExport",
        "masks": "packstore.exports.labels.sidecars:MasksExport",
        "csv": "packstore.exports.labels.documents:CsvExport",
        "open_images": "packstore.exports.labels.documents:OpenImagesExport",
        "mds": "packstore.exports.records:MdsExport",
    },
    classes=True,
)
"""Kinds of exports: classes of :class:`packstore.exports.base.Export`."""

ENCODINGS = Registry(
    "encoding",
    "packstore.encodings",
    "packstore.images.encode.base:Encoding",
    {
        **_list_at("packstore.images.encode.files:{Name}", "original jpeg"),
        **_list_at("packstore.images.encode.arrays:{Name}", "uint8 uint16 int16 int32"),
        "float16": "packstore.images.encode.arrays:Float16",
        "bfloat16": "packstore.images.encode.arrays:BFloat16",
        "float32": "packstore.images.encode.arrays:Float32",
    },
    classes=True,
)
"""Encodings of images: classes of :class:`packstore.images.encode.base.Encoding`."""
