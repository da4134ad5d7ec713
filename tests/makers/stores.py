"""Stores as files: what is in them, and damage to it."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from packstore.stores import open_store


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def content(path: Path) -> dict[str, bytes]:
    """All files of a store, by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    """Writes ``new`` over ``old``, wherever in the files of a store it lies; a map of them sees it."""
    places = 0
    for file in files_of(path):
        data = file.read_bytes()
        place = data.find(old)
        with file.open("r+b") as opened:
            while place >= 0:
                opened.seek(place)
                opened.write(new)
                places += 1
                place = data.find(old, place + 1)
    assert places


def change(path: Path, value: bytes, offset: int, bits: int = 0x21) -> None:
    """Changes bits in a byte of a value, wherever in the files of a store it lies."""
    overwrite(path, value, value[:offset] + bytes([value[offset] ^ bits]) + value[offset + 1 :])


def damage(path: Path, images: list[int], columns: list[str], record: int = 3, bits: int = 0x21) -> None:
    """Changes bits in a byte of each of these images, and of the values that ``record`` has in these columns."""
    with open_store(path) as reader:
        values = [(bytes(reader.read(i)), len(reader.read(i)) // 2) for i in images]
        for name in columns:
            if name == "key":
                key = reader.key(record).encode()
                values.append((key, len(key) - 1))
            else:
                starts = [*reader.table.starts.tolist(), len(reader)]
                part = bisect_right(starts, record) - 1
                column = reader.fixed_column(name)[starts[part] : starts[part + 1]]
                values.append((column.tobytes(), (record - starts[part]) * column[:1].nbytes))
    for value, offset in values:
        change(path, value, offset, bits)
