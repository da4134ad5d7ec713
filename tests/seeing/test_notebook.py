"""What a notebook shows of stores, datasets and loaders."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.augment import RandomHorizontalFlip
from tests.internals import SheetOptions, choose_rows, count_classes, notebook
from tests.makers.annotated import jpeg
from tests.makers.datasets import make_folder
from tests.makers.stores import damage, files_of
from tests.makers.typed import make_typed


class Page(HTMLParser):
    """The tags of a page, which has to close those that it opens, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "_SECONDS", 600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("notebook")
    packstore.convert(make_folder(root / "photos"), root / "x.lmdb")
    return root / "x.lmdb"


def test_a_store_a_dataset_and_a_loader(store: Path) -> None:
    with packstore.open(store) as reader:
        page = Page(reader._repr_html_())
    assert page.tags.count("img") == 8
    for text in (
        *("24 records", "shown: 8 of 24 records, evenly spread", "train", "val", "12", "ant", "bee"),
        *("cat", "original in lmdb"),
    ):
        assert text in page.text
    dataset = packstore.PackedDataset(store, "val", output="pil")
    page = Page(dataset._repr_html_())
    assert page.tags.count("img") == 8
    assert "split val: 12 records" in page.text
    assert "shown: 8 of 12 records, evenly spread" in page.text
    assert "image as pil" in page.text
    assert "4" in page.text.split("ant")[-1]
    dataset = packstore.PackedDataset(store, "val")
    loader = packstore.PackedLoader(dataset, 4, augment=[RandomHorizontalFlip()], resident=False)
    page = Page(loader._repr_html_())
    assert "3 batches of 4" in page.text
    assert "RandomHorizontalFlip" in page.text
    assert page.tags.count("img") == 8


def test_plain_repr_draws_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("not asked for")

    monkeypatch.setattr(notebook, "render_html", refused)
    dataset = packstore.PackedDataset(store, "val")
    with packstore.open(store) as reader:
        assert "<img" not in repr(reader) + repr(dataset) + repr(packstore.PackedLoader(dataset, 4))


def test_html_in_keys_and_classes_is_text(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    with packstore.Writer(tmp_path / "x.lmdb", {"image": "image", "label": packstore.Label([evil, "b"])}) as writer:
        for number in range(3):
            writer.add(image=jpeg(number), label=number % 2, key=f"'\"><img src=x onerror=1>{evil}{number}", split=evil)
    with packstore.open(tmp_path / "x.lmdb") as reader:
        html = reader._repr_html_()
    for found in (html, packstore.PackedDataset(tmp_path / "x.lmdb")._repr_html_()):
        page = Page(found)
        assert "script" not in page.tags
        assert page.tags.count("img") == 3
        assert evil in page.text
        assert set(re.findall(r'<img alt="[^"<>]*" title="[^"<>]*" src="([a-z:/]+);', found)) == {"data:image/jpeg"}


@pytest.mark.slow
def test_damage_is_shown(tmp_path: Path) -> None:
    packstore.convert(make_folder(tmp_path / "photos", splits=()), tmp_path / "x.lmdb", shard_size=20_000)
    store = tmp_path / "x.lmdb"
    damage(store, [0], ["label"], record=0)
    page = Page(packstore.PackedDataset(store)._repr_html_())
    assert "record 0 (ant/000.jpg) is damaged" in page.text
    with packstore.open(store) as reader:
        Page(reader._repr_html_())
    for file in files_of(sorted(store.glob("shard-*"))[-1]):
        file.unlink()
    with packstore.open(store) as reader:
        assert "cannot be opened" in Page(reader._repr_html_()).text


def test_columns_of_every_type_and_few_records(tmp_path: Path) -> None:
    made = make_typed(tmp_path / "x.h5", ["mask", "boxes", "labels", "caption"], 2)
    with packstore.open(made.path) as reader:
        page = Page(reader._repr_html_())
    assert page.tags.count("img") == 2
    assert "shown: 2 of 2 records" in page.text
    assert "spread" not in page.text


@pytest.mark.parametrize(("seconds", "shown"), [(-1, 4), (600, 8)])
@pytest.mark.parametrize("kind", ["store", "dataset", "loader"])
def test_a_slow_store_shows_four_thumbnails(
    store: Path, kind: str, seconds: float, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first image takes longer in a new process, which imports the decoders for it."""
    monkeypatch.setattr(notebook, "_SECONDS", seconds)
    dataset = packstore.PackedDataset(store, "val")
    thing = {"store": dataset.reader, "dataset": dataset, "loader": packstore.PackedLoader(dataset, 1)}[kind]
    page = Page(thing._repr_html_())
    assert page.tags.count("img") == shown
    assert f"shown: {shown} of {len(dataset.reader) if kind == 'store' else 12} records" in page.text
    assert "ant" in page.text


@pytest.mark.parametrize(
    ("field", "label", "shown"),
    [
        (packstore.Labels(["ant", "<bee>"], of=False), [1, 0], "<bee>, ant"),
        (packstore.Labels(["ant", "<bee>"], of=False), [], "shown: 1"),
        ("text", "some <words>", "some <words>"),
        (packstore.Array("float32", (2,)), [1, 2], "[1. 2.]"),
    ],
    ids=["classes", "no class", "text", "vector"],
)
def test_a_label_that_is_not_one_class(field: Any, label: Any, shown: str, tmp_path: Path) -> None:
    """Notebook, sheet and overview show such stores as stores without classes, or with lists of them."""
    with packstore.Writer(tmp_path / "a.lmdb", {"image": "image", "label": field}) as writer:
        writer.add(image=jpeg(1), key="1", label=label)
    with packstore.open(tmp_path / "a.lmdb") as reader:
        assert shown in Page(notebook.render_html(reader)).text
        assert [row.records for row in choose_rows(reader, SheetOptions())] == [(0,)]
        counted = count_classes(reader, lambda _: None)
        assert counted["column"] == ("label" if isinstance(field, packstore.Labels) else None)
