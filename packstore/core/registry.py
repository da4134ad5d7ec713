"""Plug points: the formats, sources and encodings by name, each loaded on first use.

A plug-in adds one line: an entry point in the group named here, or a call of :meth:`Registry.register`. Importing this
module loads none of them and reads no entry points, so the command line can list the built-in names in its help.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from packstore.core.errors import UsageError, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Registry:
    """Objects by name: built-in ones, then those of entry points and of :meth:`register`.

    Attributes:
        what: What it holds, for messages: ``format``.
        group: Its group of entry points: ``packstore.formats``.
    """

    def __init__(self, what: str, group: str, built_in: dict[str, str]) -> None:
        """``built_in`` maps each name to where its object lives: ``package.module:attribute``."""
        self.what = what
        self.group = group
        self._places = built_in
        self._objects: dict[str, Any] = {}
        self._found: dict[str, EntryPoint] | None = None

    def register(self, name: str, value: Any) -> None:
        """Adds ``value``, or replaces what had its name."""
        self._objects[name] = value

    def unregister(self, name: str) -> None:
        """Takes back what :meth:`register` added."""
        del self._objects[name]

    def __getitem__(self, name: str) -> Any:
        """The object called ``name``. Raises :class:`UsageError` for an unknown name, and for a plug-in that does not
        load."""
        self.check(name)
        if name not in self._objects:
            if name in self._places:
                module, _, attribute = self._places[name].partition(":")
                self._objects[name] = getattr(import_module(module), attribute)
            else:
                self._objects[name] = self._load(self._entry_points()[name])
        return self._objects[name]

    def check(self, name: str) -> None:
        """Raises :class:`UsageError` that lists all names where ``name`` is none of them. Loads nothing."""
        if name not in self:
            raise UsageError(f"unknown {self.what} {printable(name)!r}; use one of: {', '.join(self)}")

    def __contains__(self, name: object) -> bool:
        return name in self._places or name in self._objects or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        """All names, the built-in ones first; entry points are read when these are used up."""
        yield from self._places
        yield from (n for n in dict.fromkeys([*self._entry_points(), *self._objects]) if n not in self._places)

    def values(self) -> Iterator[Any]:
        """All objects in the order of their names, each loaded when it is reached."""
        return (self[name] for name in self)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names that packstore has itself; reads no entry points."""
        return tuple(self._places)

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._found is None:
            from importlib.metadata import entry_points  # 30 ms, which no help text needs

            self._found = {point.name: point for point in entry_points(group=self.group)}
        return self._found

    def _load(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except Exception as error:
            where = f" of {point.dist.name}" if point.dist is not None else ""
            raise UsageError(
                f"the plug-in {point.name!r}{where} ({self.what}) does not load: {printable(str(error))}; mend or "
                "uninstall it"
            ) from error


FORMATS = Registry(
    "format",
    "packstore.formats",
    {
        "lmdb": "packstore.stores.lmdb:FORMAT",
        "hdf5": "packstore.stores.hdf5:FORMAT",
        "pth": "packstore.stores.pth:FORMAT",
    },
)
"""Containers: objects of :class:`packstore.stores.format.Format`."""

SOURCES = Registry(
    "kind of source",
    "packstore.sources",
    {
        "store": "packstore.sources.store:KIND",
        "cifar10": "packstore.sources.cifar:CIFAR10",
        "cifar100": "packstore.sources.cifar:CIFAR100",
        "imagefolder": "packstore.sources.imagefolder:KIND",
        "flat": "packstore.sources.flat:KIND",
    },
)
"""Kinds of sources: objects of :class:`packstore.sources.base.Kind`, asked in this order whether a path is theirs."""

ENCODINGS = Registry(
    "encoding",
    "packstore.encodings",
    {
        "original": "packstore.images.encode.original:Original",
        "seekable": "packstore.images.encode.seekable:Seekable",
        "jpeg": "packstore.images.encode.jpeg:Jpeg",
        "uint8": "packstore.images.encode.uint8:Uint8",
        "float16": "packstore.images.encode.floats:Float16",
        "bfloat16": "packstore.images.encode.floats:BFloat16",
        "float32": "packstore.images.encode.floats:Float32",
    },
)
"""What an image column holds: classes of :class:`packstore.images.encode.base.Encoding`."""
