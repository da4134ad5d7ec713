"""Lists the names in a directory as one text, which is split only if needed."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Sequence

from packstore.images.engine import list_names

_KEPT_BYTES = 32 << 20  # of names, in memory
_UNKNOWN = -1
# Age from which the next change has another time: the coarsest clock of a file system, that of FAT, counts in 2 s.
_SETTLED_NS = 2_000_000_000
_SHARED_NAMES = 1 << 16  # names of files in the objects that a cache shares


class Names:
    """Names in one directory: ``files`` and ``folders``. Callers give both sorted; the order is not checked.

    Attributes:
        folders: Names of directories and of links to them.
        text: The names of all other files, each between null characters: ``"\\0a.jpg\\0b.jpg\\0"``; empty for none.
    """

    __slots__ = ("_common", "_files", "folders", "text")

    def __init__(self, files: Sequence[str] = (), folders: Sequence[str] = ()) -> None:
        self._files: Sequence[str] | None = files
        self.folders = folders
        self.text = "\0".join(("", *files, "")) if files else ""
        self._common: str | None = None

    @classmethod
    def of_text(cls, text: str, folders: Sequence[str], common_suffix: str) -> Names:
        """Makes an instance from the joined names of files, see :attr:`text`, and their common suffix."""
        names = cls((), folders)
        names.text, names._files, names._common = text, None if text else (), common_suffix
        return names

    @property
    def files(self) -> Sequence[str]:
        """Names of the files, sorted."""
        if self._files is None:
            self._files = self.text[1:-1].split("\0")
        return self._files

    def __bool__(self) -> bool:
        return bool(self.text or self.folders)

    def ending(self, *suffixes: str) -> Sequence[str]:
        """Returns the files that end with one of the suffixes, in any case: ``names.ending(".json")``. ``suffixes`` are
        in lower case. Leaves out macOS's copies of attributes (``._a.json``)."""
        common = self.common_suffix.lower()
        if common and not any(suffix.endswith(common) for suffix in suffixes):
            return ()
        text = self.text.lower()
        if not any(f"{suffix}\0" in text for suffix in suffixes):
            return ()
        return [name for name in self.files if name.lower().endswith(suffixes) and name[:2] != "._"]

    @property
    def common_suffix(self) -> str:
        """The last suffix with its dot, as written, if all files have the same suffix. Else empty."""
        if self._common is None:
            self._common = find_common_suffix(self.text)
        return self._common


def find_common_suffix(text: str) -> str:
    """Computes :attr:`Names.common_suffix` from :attr:`Names.text`. Returns ``""`` if suffixes differ, or a name has no
    suffix. A name whose only dot comes first has no suffix."""
    first = text[1 : text.find("\0", 1)]
    dot = first.rfind(".")
    end = f"{first[dot:]}\0"
    if dot <= 0 or text.count(end) != text.count("\0") - 1 or f"\0{end}" in text:
        return ""
    return first[dot:]


class NameCache:
    """Caches names by directory, for any thread. Leaving its ``with`` block discards all names.

    Encodes all names: in memory up to 32 MiB, then in a temporary file. Also keeps up to 65,536 decoded names.

    Attributes:
        identities: Device and inode of directories whose names were asked for since :meth:`expire`.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_KEPT_BYTES)  # noqa: SIM115 - closed by __exit__()
        self._places: dict[str, tuple[int, int, str]] = {}
        self._decoded: dict[str, Names] = {}
        self._room = _SHARED_NAMES
        self._changed: dict[str, int] = {}
        self.identities: dict[str, tuple[int, int]] = {}
        self._expired: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> NameCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # not if Ctrl-C ended __init__()
            self._file.close()

    def __contains__(self, directory: str) -> bool:
        return directory in self._places

    def close(self) -> None:
        """Discards all names."""
        self._file.close()

    def get_names(self, directory: str, changed_ns: int | None = None) -> Names | None:
        """Returns the cached names of a directory, or None if none are cached.

        After :meth:`expire`, also returns None unless ``changed_ns``, the directory's time of change, is that of its
        listing."""
        if directory in self._expired:
            if changed_ns in (None, _UNKNOWN) or changed_ns != self._changed.get(directory):
                return None
            self._expired.discard(directory)
        names, place = self._decoded.get(directory), self._places.get(directory)
        if names is None and place is not None:
            with self._lock:
                self._file.seek(place[0])
                files, *folders = self._file.read(place[1]).decode("utf-8", "surrogateescape").split("/")
                names = Names.of_text(files, folders, place[2])
                self._keep_decoded(directory, names)
        return names

    def get_unchanged(self, directory: str, status: os.stat_result) -> Names | None:
        """Returns the cached names of a directory with this status, after :meth:`expire` if it has not changed since.
        Keeps its identity."""
        self.identities[directory] = status.st_dev, status.st_ino
        return self.get_names(directory, settled_change_ns(status))

    def put_names(self, directory: str, names: Names, changed_ns: int = _UNKNOWN) -> None:
        """Caches the names of a directory; replaces names that are cached already. ``changed_ns``: the directory's time
        of change, if the names may be used after :meth:`expire`."""
        raw = "/".join((names.text, *names.folders)).encode("utf-8", "surrogateescape")
        with self._lock:
            self._places[directory] = (self._file.seek(0, os.SEEK_END), len(raw), names.common_suffix)
            self._file.write(raw)
            self._keep_decoded(directory, names)
            self._changed[directory] = changed_ns
            self._expired.discard(directory)

    def expire(self) -> None:
        """Makes :meth:`get_names` compare times of change."""
        self._expired = {*self._places}
        self.identities.clear()

    def _keep_decoded(self, directory: str, names: Names) -> None:
        """Keeps the decoded names of a directory, in place of all others if there is no room for more."""
        count = names.text.count("\0") + len(names.folders)
        self._decoded.pop(directory, None)
        if count > self._room:
            self._decoded.clear()
            self._room = _SHARED_NAMES
        # A single directory may have too many names.
        if count <= self._room:
            self._decoded[directory] = names
            self._room -= count


def settled_change_ns(status: os.stat_result) -> int:
    """Returns the time of change of a directory, in ns. Returns -1 if it is so recent that the next change may have the
    same time."""
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    return changed if changed < time.time_ns() - _SETTLED_NS else _UNKNOWN


def list_directory_names(directory: int) -> Names:
    """Lists the names in a directory, by its file descriptor. A link to itself counts as a file. Raises
    :class:`OSError` if it cannot be listed."""
    listed = list_names(directory)
    if listed is not None:
        files, folders = (sorted(text[:-1].split("\0")) if text else [] for text in listed)
        return Names(files, folders)
    with os.scandir(directory) as entries:
        pairs = sorted((entry.name, is_directory(entry)) for entry in entries)
    return Names([name for name, is_folder in pairs if not is_folder], [name for name, is_folder in pairs if is_folder])


def list_known_names(descriptor: int, status: os.stat_result, known: NameCache | None, key: str) -> Names:
    """Returns the names in an open directory from a cache, or lists and caches them. Raises :class:`OSError` if it
    cannot be listed."""
    if known is None:
        return list_directory_names(descriptor)
    names = known.get_unchanged(key, status)
    if names is None:
        known.put_names(key, names := list_directory_names(descriptor), settled_change_ns(status))
    return names


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Tells if an entry is a directory, or a link to one. False for a link to itself."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: a file, which reading reports with its key
        return False
