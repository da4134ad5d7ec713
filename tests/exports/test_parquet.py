"""Exports as Parquet in Hugging Face's layout: the contract, and what others read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from packstore import PackedDataset, convert, export
from tests.internals import UsageError, parquet
from tests.makers.images import tiny

pq = pytest.importorskip("pyarrow.parquet")
yaml = pytest.importorskip("yaml")

WRITTEN = Path(__file__).parents[1] / "corpus" / "parquet"


def write_store(folder: Path, splits: dict[str, dict[str, list[int]]]) -> Path:
    """A store of small images by split and class."""
    for split, classes in splits.items():
        for name, numbers in classes.items():
            (folder / "in" / split / name).mkdir(parents=True)
            for number in numbers:
                (folder / "in" / split / name / f"{number}.png").write_bytes(tiny(number))
    convert(folder / "in", folder / "in.lmdb")
    return folder / "in.lmdb"


def test_how_the_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path, {"train": {"a": [*range(30)], "b: c": [*range(30, 60)]}, "val": {"a": [61]}})
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 1600)
    size = len(tiny(1))
    report = export(store, tmp_path / "out.parquet", shard_size=30 * size)
    assert report.shards == 3
    names = ["train-00000-of-00002", "train-00001-of-00002", "val-00000-of-00001"]
    data = [tmp_path / "out.parquet" / "data" / f"{name}.parquet" for name in names]
    assert sorted(data[0].parent.iterdir()) == data
    with pq.ParquetFile(data[0]) as file:
        assert file.metadata.num_row_groups == -(-30 * size // (1600 // size * size + size))
        column = file.metadata.row_group(0).column(0)
        assert (column.path_in_schema, column.compression) == ("image.bytes", "UNCOMPRESSED")
        assert set(column.encodings) == {"PLAIN", "RLE"}
        assert column.total_uncompressed_size < file.metadata.row_group(0).num_rows * (size + 8) + 200
        features = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        assert features == {"image": {"_type": "Image"}, "label": {"names": ["a", "b: c"], "_type": "ClassLabel"}}
        rows = file.read().to_pylist()
        assert rows[0] == {"image": {"bytes": tiny(0), "path": "0.png"}, "label": 0}
        assert tiny(5) in data[0].read_bytes()


def test_the_card(tmp_path: Path) -> None:
    store = write_store(tmp_path, {"train": {'say "ä\\\u2028': [1], "yes": [2]}, "val": {"yes": [3]}})
    export(store, tmp_path / "out.parquet")
    _, head, text = (tmp_path / "out.parquet" / "README.md").read_text("utf-8").split("---\n")
    card = yaml.safe_load(head)
    files = [{"split": name, "path": f"data/{name}-*"} for name in ("train", "val")]
    assert card["configs"] == [{"config_name": "default", "data_files": files}]
    info = card["dataset_info"]
    assert info["features"] == [
        {"name": "image", "dtype": "image"},
        {"name": "label", "dtype": {"class_label": {"names": {"0": 'say "ä\\\u2028', "1": "yes"}}}},
    ]
    assert [(split["name"], split["num_examples"]) for split in info["splits"]] == [("train", 2), ("val", 1)]
    assert "3 records" in text


def test_names_of_splits_that_others_do_not_take(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    labels = "file,label,split\n"
    for number, split in enumerate(("one two", "one-two", "drei ü")):
        (tmp_path / "images" / f"{number}.png").write_bytes(tiny(number))
        labels += f"{number}.png,x,{split}\n"
    (tmp_path / "labels.csv").write_text(labels)
    manifest = convert(tmp_path / "images", tmp_path / "in.lmdb", labels=tmp_path / "labels.csv").manifest
    report = export(tmp_path / "in.lmdb", tmp_path / "out.parquet")
    names = sorted(file.name for file in (tmp_path / "out.parquet" / "data").iterdir())
    assert names == [f"{name}-00000-of-00001.parquet" for name in ("drei__", "one_two", "one_two_")]
    assert "the split name 'one two': it becomes 'one_two'" in "\n".join(report.losses)
    assert convert(tmp_path / "out.parquet", tmp_path / "b.lmdb").manifest.dataset_digest == manifest.dataset_digest
    convert(tmp_path / "images", tmp_path / "flat.lmdb")
    assert "split name" not in "\n".join(export(tmp_path / "flat.lmdb", tmp_path / "flat.parquet").losses)


@pytest.mark.slow
def test_without_the_manifest_it_is_read_like_any_other(tmp_path: Path) -> None:
    convert(WRITTEN, tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out.parquet")
    for name in ("packstore.json", "packstore.rows.jsonl"):
        (tmp_path / "out.parquet" / name).unlink()
    manifest = convert(tmp_path / "out.parquet", tmp_path / "again.lmdb").manifest
    assert manifest.column("label").classes == ("ant", "bee", "cat ä")
    columns = ("image", "label", "caption", "emb", "numbers", "tags", "other", "annotation_mask")

    def samples(store: str) -> list[list[Any]]:
        found = [
            sample
            for split in ("train", "validation", "test")
            for sample in PackedDataset(tmp_path / store, split, columns=columns, output="bytes")
        ]
        return [[each.tolist() if hasattr(each, "tolist") else each for each in sample] for sample in found]

    assert samples("again.lmdb") == samples("in.lmdb")


def test_what_datasets_reads(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    convert(WRITTEN, tmp_path / "in.lmdb")
    export(tmp_path / "in.lmdb", tmp_path / "out.parquet")
    found = datasets.load_dataset(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in found.items()} == {"train": 6, "validation": 2, "test": 2}
    features = found["train"].features
    assert features["label"] == datasets.ClassLabel(names=["ant", "bee", "cat ä"])
    assert features["grid"] == datasets.List(datasets.List(datasets.Value("int32"), length=2), length=2)
    row = found["train"].cast_column("image", datasets.Image(decode=False))[5]
    assert (row["image"]["bytes"], row["label"], row["numbers"]) == (tiny(5), 2, [0])
    assert found["train"][0]["image"].size == (3, 2)


def test_pyarrow_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path, {"train": {"a": [1]}})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'packstore\[parquet\]'"):
        export(store, tmp_path / "out.parquet")
