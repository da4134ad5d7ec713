"""Sources whose images a generator yields: splits, classes, columns, ledger and errors follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.internals import (
    Files,
    Found,
    FoundSource,
    InTree,
    Label,
    Labels,
    Role,
    SampleError,
    SourceError,
    SourceOptions,
)
from tests.makers.annotated import fill, jpeg, mask

Generator = Callable[[Files], Iterator[Found]]


def opened(folder: Path, generate: Generator) -> FoundSource:
    """A source with a generator, of three images and a list of them."""
    fill(folder, {f"{n}.jpg": jpeg(ord(n)) for n in "abc"} | {"list.txt": "a 10\nb 9\n\nc 10\n", "else.txt": ""})

    class Own(FoundSource):
        kind = "own"

        def generate(self, files: Files) -> Iterator[Found]:
            return generate(files)

    return Own(folder, SourceOptions())


def values_of(source: FoundSource) -> list[dict[str, Any]]:
    return [dict(source.read(entry).values) for entry in source.entries()]


def test_splits_and_classes_follow_from_the_images(tmp_path: Path) -> None:
    def generate(files: Files) -> Iterator[Found]:
        for name, number in files.lines("list.txt"):
            yield Found(f"{name}.jpg", "val" if name == "a" else "train", {"label": number, "count": int(number)})

    with closing(opened(tmp_path, generate)) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 2, "val": 1}
        assert survey.columns[0].classes == ("9", "10")  # numbers sort as numbers
        assert values_of(source) == [{"label": 0, "count": 9}, {"label": 1, "count": 10}, {"label": 1, "count": 10}]
        assert [*survey.ledger.names(Role.ANNOTATION)] == ["list.txt"]
        assert (survey.ledger.count(Role.PACKED), survey.ledger.left) == (3, {"not images (.txt)": 1})


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_line_that_a_list_repeats_is_noted_and_packed_once(repeats: int, tmp_path: Path) -> None:
    def generate(files: Files) -> Iterator[Found]:
        for split in files.each_split("train", "val"):
            for name, number in files.lines(f"{split}.txt"):
                yield Found(f"{name}.jpg", split, {"label": number})

    fill(tmp_path, {"train.txt": "b 1\n" + "a 2\n" * (1 + repeats), "val.txt": "a 2\n"})
    with closing(opened(tmp_path, generate)) as source:
        survey = source.survey()
        assert dict(survey.splits) == {"train": 2, "val": 1}
        assert [entry.key for entry in source.entries()] == ["b.jpg", "a.jpg", "a.jpg"]
        lines = f"{repeats} line{'s' if repeats > 1 else ''}"
        assert survey.notes == (f"the lists repeat {lines}, such as a.jpg; each image is packed once",)


def test_an_image_that_a_list_names_with_other_values_is_no_repeated_line(tmp_path: Path) -> None:
    def generate(files: Files) -> Iterator[Found]:
        for number, (name, _) in enumerate(files.lines("list.txt")):
            yield from (Found(f"{name}.jpg", values={"count": number}, key=f"{name}/{n}") for n in range(2))

    with closing(opened(tmp_path, generate)) as source:
        assert (source.survey().records, source.survey().notes) == (6, ())


def test_with_declared_classes_one_image_of_each_split_is_read_first(tmp_path: Path) -> None:
    read = []

    def generate(files: Files) -> Iterator[Found]:
        files.columns["labels"] = Labels(("9", "10"), of=False)
        for split in files.each_split("test", "train"):
            for name, number in files.lines("list.txt"):
                read.append(name)
                yield Found(f"{name}.jpg", split, {"labels": [number]}, f"{split}/{name}")

    with closing(opened(tmp_path, generate)) as source:
        assert source.splits() == ("test", "train")
        assert read == ["a", "a", "a"]
        assert [entry.key for entry in source.entries("test")] == ["test/a", "test/b", "test/c"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda number: int(number) - 10, r"list\.txt has the line 'b 9': -1 is none of 2 classes"),
        (lambda number: f"class {number}", r"list\.txt has the line 'a 10': 'class 10' is unknown"),
        (lambda number: [][int(number)], r"list\.txt has the line 'a 10': list index out of range"),
        (lambda number: {"label": number}, r"list\.txt has the line 'a 10': "),
    ],
)
def test_an_error_has_the_file_and_the_line(value: Callable[[str], Any], said: str, tmp_path: Path) -> None:
    def generate(files: Files) -> Iterator[Found]:
        files.columns["label"] = Label(("x", "y"))
        for name, number in files.lines("list.txt"):
            yield Found(f"{name}.jpg", values={"label": value(number)})

    with closing(opened(tmp_path, generate)) as source, pytest.raises(SourceError, match=said) as caught:
        source.survey()
    assert not isinstance(caught.value, SampleError)


def test_a_line_of_an_unknown_key_has_the_file(tmp_path: Path) -> None:
    def generate(files: Files) -> Iterator[Found]:
        assert not files.by_key("missing.txt")
        table = files.by_key("list.txt")
        assert (table["b"], table.get("z")) == (["9"], None)
        yield Found("a.jpg", values={"count": table["z"]})

    with (
        closing(opened(tmp_path, generate)) as source,
        pytest.raises(SourceError, match=r"list\.txt has no line of 'z'"),
    ):
        source.survey()


def test_a_folder_is_listed_only_if_the_generator_asks_for_it(tmp_path: Path) -> None:
    fill(tmp_path, {f"more/{n}.jpg": jpeg(10 + n) for n in range(2)})

    def generate(files: Files) -> Iterator[Found]:
        files.columns["label"] = Label(("x",))
        yield Found("more", "train", {"label": "x"}, is_folder=True)
        yield Found("more/", "test")

    with closing(opened(tmp_path, generate)) as source:
        assert [entry.key for entry in source.entries("train")] == ["more/0.jpg", "more/1.jpg"]
        (entry,) = source.entries("test")
        with pytest.raises(SampleError, match="more/"):
            source.read(entry)
        assert source.survey().columns[0].nullable


def test_files_make_a_column_if_one_exists(tmp_path: Path) -> None:
    fill(tmp_path, {"b.png": mask(1), "c.json": '{"x": 1}'})

    def generate(files: Files) -> Iterator[Found]:
        for name, _ in files.lines("list.txt"):
            kinds = {"mask": ".png", "json": ".json", "depth": ".tif"}
            yield Found(
                f"{name}.jpg",
                values={key: InTree(files.path(name + suffix), optional=True) for key, suffix in kinds.items()},
            )

    with closing(opened(tmp_path, generate)) as source:
        types = {column.name: column.type for column in source.survey().columns}
        assert types.keys() == {"mask", "mask_valid", "json", "json_valid"}
        assert (types["mask"], types["json"]) == ("mask", "json")
        assert [row["json"] for row in values_of(source)] == [None, None, {"x": 1}]
