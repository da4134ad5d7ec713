"""Devkit of ILSVRC 2012: names of the classes, and labels of the validation images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import SourceError, printable
from packstore.sources.archives import open_tree
from packstore.sources.beside import read_whole
from packstore.sources.named.mat import get_struct_fields, load_variable, to_texts, to_whole_number
from packstore.sources.named.text_table import TextTable

DEVKITS = ("ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12.tar")
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class Devkit:
    """Class names and validation labels from the devkit.

    Attributes:
        names: Names of the classes by wnid.
        truth: The wnid of each validation image, in order.
    """

    names: dict[str, str]
    truth: list[str]


def read_devkit(path: Path) -> Devkit:
    """Reads the devkit, a folder or an archive. Only synsets without children are classes.

    Raises :class:`SourceError` if the devkit is missing or damaged, and for a label that is no class.
    """
    tree = open_tree(path)
    if tree is None:
        raise SourceError(f"{printable(str(path))} is no devkit of ILSVRC")
    name = tree.name(META)
    synsets = load_variable(name, read_whole(tree, META), "synsets")
    numbers, wnids, words, children = get_struct_fields(
        name, synsets, ("ILSVRC2012_ID", "WNID", "words", "num_children")
    )
    leaves = [n for n, count in enumerate(children) if to_whole_number(name, count) == 0]
    by_number = {to_whole_number(name, numbers[n]): to_texts(name, wnids)[n] for n in leaves}
    names = {wnids[n]: to_texts(name, words)[n] for n in leaves}
    table = TextTable(tree.name(TRUTH), read_whole(tree, TRUTH))
    truth = []
    for line in table:
        wnid = by_number.get(table.parse_int(line[0], "the number of a class", line)) if len(line) == 1 else None
        if wnid is None:
            table.refuse_line(line, f"the number of one of the {len(by_number)} classes of {META}")
        truth.append(wnid)
    return Devkit(names, truth)


def find_devkit(folder: Path) -> Path | None:
    """Finds the devkit in a folder, unpacked or not; returns None if there is none."""
    return next((folder / name for name in DEVKITS if (folder / name).exists()), None)
