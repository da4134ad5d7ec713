"""Parquet and Arrow as Hugging Face's ``datasets`` writes them, and what can be wrong with them.

``tests/corpus/parquet`` and ``tests/corpus/arrow`` were written by datasets 5.2.0 with pyarrow 26.0.1: ten rows with
the columns of :func:`expected`, in splits of 6, 2 and 2, by ``Dataset.shard(…).to_parquet(…, batch_size=2)`` under the
names that ``push_to_hub`` gives, and by ``DatasetDict.save_to_disk``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packstore import PackedDataset, convert, verify
from packstore.sources import Entry, open_source
from packstore.testing import SourceSuite
from tests.internals import PackstoreError, RowSource, SampleError, SourceError, tables
from tests.makers.annotated import fill
from tests.makers.images import encode, tiny
from tests.makers.sources import look, not_packed, refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CORPUS = Path(__file__).parents[1] / "corpus"
WRITTEN = [CORPUS / "parquet", CORPUS / "arrow"]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LABEL = {"names": ["ant", "bee", "cat"], "_type": "ClassLabel"}


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store outside the source."""
    return tmp_path_factory.mktemp("out") / "x.h5"


def mask(seed: int) -> bytes:
    return encode(Image.frombytes("L", (3, 2), bytes([seed % 3] * 6)), "PNG")


def expected(n: int) -> dict[str, Any]:
    """The values of row ``n`` of the corpora."""
    return {
        "image": tiny(n),
        "annotation_mask": mask(n),
        "label": n % 3 if n < 8 else None,
        "caption": None if n == 2 else f"caption {n} ä",
        "tags": [n % 2] * (n % 3),
        "emb": [n, n + 0.5, -n],
        "numbers": list(range(n % 4)),
        "meta": {"who": f"w{n}", "n": n},
        "count": n,
        "when": f"2020-01-{1 + n:02}T00:00:00",
        "grid": [[n, 0], [1, 2]],
        "other": None if n % 4 == 1 else tiny(100 + n),
        "path": f"{n % 2}.png",
    }


def schema_of(features: dict[str, Any], **types: Any) -> Any:
    """A schema as ``datasets`` writes one."""
    return pa.schema(types.items(), {"huggingface": json.dumps({"info": {"features": features}})})


def table(numbers: Sequence[int], path: str | None = None, **more: Any) -> Any:
    """Images with labels, one row each of ``numbers``."""
    columns = {"image": [{"bytes": tiny(n), "path": path} for n in numbers], "label": [n % 3 for n in numbers], **more}
    types = {"image": IMAGE, "label": pa.int64(), **{name: pa.array(values).type for name, values in more.items()}}
    return pa.table(columns, schema_of({"image": {"_type": "Image"}, "label": LABEL}, **types))


def save(folder: Path, splits: dict[str, list[Any]], *, stream: bool = True) -> Path:
    """What ``save_to_disk`` writes of tables, each split in as many files."""
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    for split, parts in splits.items():
        names = [f"data-{number:05}-of-{len(parts):05}.arrow" for number in range(len(parts))]
        (folder / split).mkdir(parents=True, exist_ok=True)
        for name, part in zip(names, parts, strict=True):
            with new(str(folder / split / name), part.schema) as writer:
                writer.write_table(part, max_chunksize=4)
        state = {"_data_files": [{"filename": name} for name in names]}
        fill(folder / split, {"state.json": json.dumps(state), "dataset_info.json": "{}"})
    if "" not in splits:
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*splits]}))
    return folder


class TableSuite(SourceSuite):
    exact_sizes = False
    undecodable_keys = False

    def file(self, path: Path, number: int) -> Path:
        """The file with the third sample."""
        raise NotImplementedError

    def rewrite(self, file: Path) -> None:
        """Takes the third image away."""
        raise NotImplementedError

    def spoil(self, path: Path, entry: Entry) -> bool:
        self.rewrite(self.file(path, entry.ref[0]))
        return True


def without_third(found: Any) -> Any:
    rows = found.to_pylist()
    rows[2]["image"] = {"bytes": None, "path": "nowhere.png"}
    return pa.Table.from_pylist(rows, found.schema)


class TestParquet(TableSuite):
    kind = "parquet"

    def make(self, folder: Path, samples: int) -> Path:
        (folder / "data").mkdir()
        parts = {"train-00000-of-00002": range(5), "train-00001-of-00002": range(5, samples - 2)}
        for name, numbers in {**parts, "validation-00000-of-00001": range(samples - 2, samples)}.items():
            pq.write_table(table(numbers), folder / "data" / f"{name}.parquet", row_group_size=100)
        return folder

    def change(self, path: Path) -> None:
        pq.write_table(table(range(7, 9)), path / "data" / "validation-00000-of-00001.parquet")

    def file(self, path: Path, number: int) -> Path:
        return sorted((path / "data").iterdir())[number]

    def rewrite(self, file: Path) -> None:
        pq.write_table(without_third(pq.read_table(file)), file)


class TestArrow(TableSuite):
    kind = "arrow"

    def make(self, folder: Path, samples: int) -> Path:
        train = [table(range(5)), table(range(5, samples - 2))]
        return save(folder, {"train": train, "test": [table(range(samples - 2, samples))]})

    def change(self, path: Path) -> None:
        save(path, {"test": [table(range(7, 9))]})

    def file(self, path: Path, number: int) -> Path:
        return sorted((path / "train").glob("*.arrow"))[number]

    def rewrite(self, file: Path) -> None:
        with pa.ipc.open_stream(file.read_bytes()) as reader:
            found = without_third(reader.read_all())
        with pa.ipc.new_stream(str(file), found.schema) as writer:
            writer.write_table(found, max_chunksize=4)


@pytest.mark.parametrize("written", WRITTEN, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "suffix", [".lmdb", *(pytest.param(suffix, marks=pytest.mark.slow) for suffix in (".h5", ".pth"))]
)
def test_what_the_library_wrote(written: Path, suffix: str, tmp_path: Path) -> None:
    seen = look(written)
    assert seen.kind == written.name
    assert "'image'" in seen.evidence
    path = tmp_path / f"out{suffix}"
    manifest = convert(written, path, encoding="original").manifest
    assert [(split.name, split.stop - split.start) for split in manifest.splits] == [
        ("train", 6), ("validation", 2), ("test", 2),
    ]  # fmt: skip
    assert manifest.column("label").classes == ("ant", "bee", "cat ä")
    assert manifest.column("tags").classes == ("x", "y")
    assert (manifest.column("emb").shape, manifest.column("count").dtype) == ((3,), "uint8")
    assert (manifest.column("annotation_mask").type, manifest.column("other").type) == ("mask", "image")
    names = tuple(expected(0))
    splits = [
        PackedDataset(path, split, columns=("key", *names), output="bytes") for split in ("train", "validation", "test")
    ]
    for n, (key, *values) in enumerate(sample for split in splits for sample in split):
        split, index = ("train", n) if n < 6 else ("validation", n - 6) if n < 8 else ("test", n - 8)
        assert key == f"{split}/{index:010}"
        for name, value in zip(names, values, strict=True):
            wanted = expected(n)[name]
            plain = bytes(value) if isinstance(value, memoryview) else np.asarray(value).tolist()
            assert value == wanted or plain == wanted, name
    assert verify(path, against=written).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_one_split_as_stream_and_as_file(stream: bool, tmp_path: Path) -> None:
    saved = save(tmp_path / "saved", {"": [table(range(6)), table(range(6, 9))]}, stream=stream)
    manifest = convert(saved, tmp_path / "x.h5").manifest
    assert (manifest.records, manifest.splits, manifest.origin.kind) == (9, (), "arrow")
    alone = convert(saved / "data-00000-of-00002.arrow", tmp_path / "y.h5").manifest
    assert (alone.records, alone.origin.kind) == (6, "arrow")
    assert [bytes(image) for image, _ in PackedDataset(tmp_path / "x.h5", output="bytes")] == [*map(tiny, range(9))]


def test_a_file_alone(tmp_path: Path) -> None:
    manifest = convert(CORPUS / "parquet" / "data" / "test-00000-of-00001.parquet", tmp_path / "x.h5").manifest
    assert (manifest.records, manifest.splits) == (2, ())


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["data/train-00000-of-00001", "data/unseen-00000-of-00001"], ["train", "unseen"]),
        (["train-00000-of-00001", "val-00000-of-00001"], ["train", "validation"]),
        (["default/train/0000", "default/test/0000"], ["train", "test"]),
        (["birds_dev", "birds_train_0", "birds_train_1"], ["train", "validation"]),
        (["part0", "part1"], []),
    ],
)
def test_names_tell_the_splits(names: list[str], splits: list[str], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        file = tmp_path / "set" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(range(3 * number, 3 * number + 3)), file)
    manifest = convert(tmp_path / "set", tmp_path / "x.h5").manifest
    assert [split.name for split in manifest.splits] == splits
    assert manifest.records == 3 * len(names)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train-00000-of-00003"], r"lacks 2 of the shards .* train-00001-of-00003\.parquet among them"),
        (["train_test", "train_1"], r"train_test\.parquet is of several splits: train and test"),
    ],
)
def test_files_that_are_missing_or_of_two_splits(names: list[str], said: str, tmp_path: Path) -> None:
    for name in names:
        pq.write_table(table(range(3)), tmp_path / f"{name}.parquet")
    refused(SourceError, tmp_path, said)


def test_tables_that_differ(tmp_path: Path) -> None:
    pq.write_table(table(range(3)), tmp_path / "train_0.parquet")
    pq.write_table(table(range(3), size=[1, 2, 3]), tmp_path / "train_1.parquet")
    refused(SourceError, tmp_path, r"train_1\.parquet.* not those of train_0\.parquet \(size\)")
    other = table(range(3)).replace_schema_metadata(
        schema_of({"label": {**LABEL, "names": ["bee", "ant", "cat"]}}).metadata
    )
    pq.write_table(other, tmp_path / "train_1.parquet")
    refused(SourceError, tmp_path, "classes of 'label' are not those of")


def test_images_without_features(tmp_path: Path) -> None:
    columns = {"id": [5, 6], "jpg": [tiny(1), tiny(2)], "blob": [b"a", b"b"], "Key": ["p", "q"], "ok": [True, False]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    convert(tmp_path / "x.parquet", tmp_path / "x.h5")
    ds = PackedDataset(tmp_path / "x.h5", columns=("image", "id", "blob", "key_", "ok"), output="bytes")
    assert [(bytes(i), int(n), bytes(b), t, bool(o)) for i, n, b, t, o in ds] == [
        (tiny(1), 5, b"a", "p", True), (tiny(2), 6, b"b", "q", False),
    ]  # fmt: skip


def test_bytes_that_are_null_are_read_from_the_path_beside(tmp_path: Path) -> None:
    fill(tmp_path, {"set/images/1.png": tiny(1)})
    (tmp_path / "secret.png").write_bytes(tiny(9))
    paths = ["images/1.png", "images/2.png", "../secret.png", str(tmp_path / "secret.png"), None]
    images = [{"bytes": None, "path": path} for path in paths]
    pq.write_table(pa.table({"image": images}, schema_of({}, image=IMAGE)), tmp_path / "set" / "a.parquet")
    report = convert(tmp_path / "set", tmp_path / "x.h5", on_error="skip")
    assert [*PackedDataset(tmp_path / "x.h5", columns=("image",), output="bytes")] == [tiny(1)]
    reasons = [skipped.reason for skipped in report.manifest.skipped]
    assert len(reasons) == 4
    assert "No such file" in reasons[0]
    assert all("within the table's folder" in reason for reason in reasons[1:3])
    assert "has no image" in reasons[3]


def test_an_image_too_large_for_its_pixels(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "max_file_bytes", lambda pixels: 1000 * pixels)
    pq.write_table(pa.table({"image": [tiny(0), tiny(1) + bytes(1000)]}), tmp_path / "x.parquet")
    not_packed(SampleError, tmp_path, out, "max_pixels", max_pixels=1)


NAMES = {
    "by number": "          '0': {}\n          '1': {}\n          '2': {}",
    "by plain number": "          0: {}\n          1: {}\n          2: {}",
    "list": "        - {}\n        - {}\n        - {}",
}


@pytest.mark.parametrize("names", [("ant", "bee", "cat"), ("no", "007", "1_000"), ("null", "12:30", "2020-01-02")])
@pytest.mark.parametrize("form", NAMES)
def test_names_of_classes_from_the_card(form: str, names: tuple[str, ...], tmp_path: Path, out: Path) -> None:
    pytest.importorskip("yaml")
    found = table(range(3)).replace_schema_metadata(None)
    pq.write_table(found, tmp_path / "x.parquet")
    card = """---
dataset_info:
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names:
NAMES
---
# Ants
"""
    (tmp_path / "README.md").write_text(card.replace("NAMES", NAMES[form].format(*names)))
    assert convert(tmp_path, out).manifest.classes == names


def test_files_of_a_split_from_the_card(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    for name in ("a/1", "a/2", "b/1", "c/1"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(range(3)), tmp_path / "set" / f"{name}.parquet")
    card = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: a/*
  - split: mine
    path: [b/1.parquet]
---
"""
    fill(tmp_path, {"set/README.md": card, "set/notes.txt": "of no use"})
    report = convert(tmp_path / "set", tmp_path / "x.h5")
    assert [(split.name, split.stop) for split in report.manifest.splits] == [("train", 6), ("mine", 9)]
    assert report.ledger.passed_over == {"Parquet files of no split": 1, "not images (.txt)": 1}
    (tmp_path / "set" / "README.md").write_text(card.replace("b/1.parquet", "b/*.csv"))
    refused(SourceError, tmp_path / "set", "no file matches the patterns in its card for 'mine'")
    (tmp_path / "set" / "README.md").write_text(card.replace("b/1.parquet", "../b/1.parquet"))
    refused(SourceError, tmp_path / "set", "without split and path in its folder")
    two = "---\nconfigs:\n- config_name: en\n  data_files: a/*\n- config_name: fr\n  data_files: b/*\n---\n"
    (tmp_path / "set" / "README.md").write_text(two)
    refused(SourceError, tmp_path / "set", r"2 configurations \(en, fr\)")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[{"bytes": b"a", "path": None}]] * 2), "holds files in structs, or in lists of other files"),
        (pa.array([[b"a"]] * 2), "holds files in structs, or in lists of other files"),
    ],
)
def test_columns_that_nothing_holds(column: Any, said: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [tiny(1), tiny(2)], "images": column}), tmp_path / "x.parquet")
    refused(SourceError, tmp_path / "x.parquet", f"column 'images': {said}")


def test_tables_without_images(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": ["http://x"], "n": [1]}), tmp_path / "x.parquet")
    for path in (tmp_path, tmp_path / "x.parquet"):
        refused(SourceError, path, r"no column holds images; columns: url \(string\), n \(int64\)")
    pq.write_table(table(range(0)), tmp_path / "x.parquet")
    refused(SourceError, tmp_path, "holds no samples")


def test_two_classes_of_one_name(tmp_path: Path, out: Path) -> None:
    crane = schema_of({"label": {**LABEL, "names": ["crane", "bee", "crane"]}}).metadata
    pq.write_table(table(range(3)).replace_schema_metadata(crane), tmp_path / "x.parquet")
    assert convert(tmp_path, out).manifest.classes == ("crane (0)", "bee", "crane (2)")


def test_objects_without_boxes_are_json(tmp_path: Path, out: Path) -> None:
    objects = [{"category": [0, 1], "area": [0.5, 1]}] * 2
    features = {"objects": {"category": {"_type": "List", "feature": LABEL}, "area": {"_type": "List"}}}
    found = pa.table({"image": [tiny(1), tiny(2)], "objects": objects})
    pq.write_table(found.replace_schema_metadata(schema_of(features).metadata), tmp_path / "x.parquet")
    convert(tmp_path, out)
    assert PackedDataset(out, columns=("objects",))[0] == objects[0]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    shutil.copytree(CORPUS / kind, folder)
    file = next(iter(sorted(folder.rglob(f"*.{kind}"))))
    data = file.read_bytes()
    for broken in (data[:-100], data[:200], b"PAR1" if kind == "parquet" else b"\xff\xff\xff\xff", b""):
        file.write_bytes(broken)
        with pytest.raises(PackstoreError) as caught:
            assert look(folder, kind=kind).values
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("stream", [True, False])
def test_an_arrow_file_that_is_cut_while_it_is_read(stream: bool, tmp_path: Path) -> None:
    """To touch the lost pages of a mapped file is a bus error, which ends the process."""
    padded = table(range(8))
    images = [{"bytes": tiny(n) + bytes(50_000), "path": None} for n in range(8)]
    path = save(tmp_path / "set", {"": [padded.set_column(0, "image", pa.array(images, IMAGE))]}, stream=stream)
    (file,) = path.glob("*.arrow")
    with closing(open_source(path)) as source:
        entries = list(source.entries())
        assert source.image(entries[0]) == images[0]["bytes"]
        with file.open("r+b") as opened:
            opened.truncate(60_000)
        with pytest.raises(SampleError, match="was cut from"):
            source.image(entries[1])


@pytest.mark.parametrize("stream", [True, False])
def test_boxes_in_several_batches_of_arrow(stream: bool, tmp_path: Path) -> None:
    """Their convention is decided by several columns, which are read side by side."""
    objects = [{"bbox": [[1.0, 2.0, 3.0, 4.0 + n]], "category": [n % 2]} for n in range(10)]
    sides = {"width": [8 + n for n in range(10)], "height": [20] * 10}
    path = save(tmp_path / "set", {"": [table(range(10), objects=objects, **sides)]}, stream=stream)
    read = look(path, layout="xyxy").each("boxes")
    assert [np.frombuffer(boxes, np.float32).tolist() for boxes in read] == [each["bbox"][0] for each in objects]


def test_a_table_that_lies_about_its_rows(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(range(3)), tmp_path / "x.parquet")
    with closing(open_source(tmp_path)) as source:
        assert isinstance(source, tables.HfTableSource)
        table_class = type(source.open_table(tmp_path / "x.parquet"))
        overview = table_class.read_groups
        for rows, said in ((10**9, "more rows than its"), (9, "fewer rows than it says")):

            def lying(self: Any, facts: Any, rows: int = rows) -> Any:
                found = overview(self, facts)
                found[0] = found[0]._replace(rows=rows)
                return found

            monkeypatch.setattr(table_class, "read_groups", lying)
            not_packed(PackstoreError, tmp_path, out, said, overwrite=True)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_large_groups_are_decoded_in_parts_and_fetched_in_order(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packstore.sources.huggingface.files.STEP_BYTES", 300)
    found = table(range(40), None, n=[*range(40)])
    if kind == "parquet":
        pq.write_table(found, tmp_path / "x.parquet", row_group_size=25)
        path = tmp_path / "x.parquet"
    else:
        path = save(tmp_path / "x", {"": [found]})
    with closing(open_source(path)) as source:
        assert isinstance(source, RowSource)
        entries = list(source.entries())
        for some in (entries, entries[7:], entries[3::9], [entries[5], entries[5], entries[2], entries[39]]):
            read = [source.read(entry) for entry in source.fetch(iter(some))]
            assert [int(sample.values["n"]) for sample in read] == [int(entry.key) for entry in some]
            assert [sample.image for sample in read] == [tiny(int(entry.key)) for entry in some]
        assert [source.read(entry).values["n"] for entry in entries[::-7]] == [
            int(entry.key) for entry in entries[::-7]
        ]
        fetching = source.fetch(iter(entries))
        next(fetching)
        del fetching  # ends its thread


def test_a_large_row_group_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.sources.huggingface.files.STEP_BYTES", 200_000)
    monkeypatch.setattr("packstore.sources.huggingface.files._BUFFER", 50_000)
    size = 50_000
    images = [tiny(n) + np.random.default_rng(n).bytes(size) for n in range(100)]
    options = {"compression": "none", "use_dictionary": False, "data_page_size": size, "write_batch_size": 1}
    pq.write_table(pa.table({"image": images}), tmp_path / "x.parquet", **options)
    with closing(open_source(tmp_path / "x.parquet")) as source:
        before = most = pa.total_allocated_bytes()
        for entry, image in zip(source.fetch(source.entries()), images, strict=True):
            most = max(most, pa.total_allocated_bytes())
            assert source.image(entry) == image
    assert 0 < most - before < 40 * size


def test_pyarrow_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for written in WRITTEN:
        refused(SourceError, written, r"pip install 'packstore\[parquet\]'")


def test_a_card_without_a_library_for_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(range(3)), tmp_path / "x.parquet")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    open_source(tmp_path).close()  # of which nothing is needed
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n---\n")
    refused(SourceError, tmp_path, r"README\.md: its head needs PyYAML: pip install")


def test_image_folders_beside_tables_are_not_taken(tmp_path: Path) -> None:
    for label in "ab":
        fill(tmp_path, {f"{label}/1.png": tiny(1)})
    pq.write_table(pa.table({"url": ["http://x"], "key": ["1"]}), tmp_path / "00000.parquet")
    refused(SourceError, tmp_path, "would be packed without")


def test_a_clone_without_its_large_files_says_so(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00001.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(SourceError, tmp_path, "is a pointer of Git LFS")


@pytest.mark.parametrize("named", [True, False])
def test_images_beside_tables_that_do_not_name_them_are_counted(named: bool, tmp_path: Path) -> None:
    images = [{"bytes": None if named else tiny(n), "path": f"{n}.png"} for n in range(2)]
    made = table(range(2))
    pq.write_table(made.set_column(0, "image", pa.array(images, IMAGE)), tmp_path / "train.parquet")
    for n in range(2):
        (tmp_path / f"{n}.png").write_bytes(tiny(n))
    assert dict(look(tmp_path).ledger.passed_over) == ({} if named else {"images that are no samples": 2})


TEXTS = ["dog", "ant", None, "ant", "dog", "dog"]


def _texts(folder: Path, kind: str, name: str, texts: Sequence[Any], coded: bool) -> Path:
    """Two files with images and texts."""
    folder.mkdir()
    for number, rows in enumerate((range(3), range(3, 6))):
        values = pa.array([texts[n] for n in rows], pa.string())
        columns = {"image": [{"bytes": tiny(n), "path": None} for n in rows], name: values}
        made = pa.table(columns, pa.schema([("image", IMAGE), (name, pa.string())]))
        if coded:
            made = made.set_column(1, name, values.dictionary_encode())
        path = folder / f"train-{number:05}-of-00002.parquet"
        if kind == "parquet":
            pq.write_table(made, path, row_group_size=2)
        else:
            path = folder / f"{number}.arrow"
            with pa.ipc.new_file(str(path), made.schema) as out:
                out.write_table(made)
    if kind == "arrow":
        files = [{"filename": f"{number}.arrow"} for number in range(2)]
        fill(folder, {"state.json": json.dumps({"_data_files": files}), "dataset_info.json": "{}"})
    return folder


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("name", ["label", "class", "category_name"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_texts_that_name_classes_are_labels(kind: str, name: str, coded: bool, tmp_path: Path, out: Path) -> None:
    path = _texts(tmp_path / "set", kind, name, TEXTS, coded)
    assert convert(path, out).manifest.classes == ("ant", "dog")
    assert list(PackedDataset(out, columns=("label",))) == [1, 0, None, 0, 1, 1]
    assert verify(out, against=path).problems == ()


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("name", ["label", "caption"])
def test_texts_that_differ_are_labels_if_they_are_coded(name: str, coded: bool, tmp_path: Path, out: Path) -> None:
    path = _texts(tmp_path / "set", "parquet", name, [f"text {n}" for n in range(6)], coded)
    column = convert(path, out).manifest.column(name)
    assert column.type == ("label" if coded and name == "label" else "text")


def test_times_with_nanoseconds_are_texts(tmp_path: Path, out: Path) -> None:
    day, when = 86_400_000_000_001, pa.timestamp("ns")
    columns = {
        "image": pa.array([{"bytes": tiny(1), "path": None}], IMAGE),
        "when": pa.array([day], when),
        "time": pa.array([1], pa.time64("ns")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    values = ("1970-01-02T00:00:00.000000001", "00:00:00.000000001")
    convert(tmp_path, out)
    assert [*PackedDataset(out, columns=("when", "time"), output="bytes")] == [values]
    columns["image"] = pa.array(["a.png"])
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (tmp_path / "a.png").write_bytes(tiny(1))
    convert(tmp_path, out.with_name("table.h5"))
    assert [*PackedDataset(out.with_name("table.h5"), columns=("when", "time"), output="bytes")] == [values]


def test_numbers_beside_texts_are_the_labels(tmp_path: Path, out: Path) -> None:
    (tmp_path / "set").mkdir()
    pq.write_table(table(range(6), class_name=["a", "b"] * 3), tmp_path / "set/x.parquet")
    manifest = convert(tmp_path / "set", out).manifest
    assert (manifest.classes, manifest.column("class_name").type) == (("ant", "bee", "cat"), "text")
