"""The manifest: JSON both ways, and nothing that cannot be."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import (
    FORMAT_VERSION,
    Column,
    Manifest,
    ManifestError,
    Normalization,
    Origin,
    Shard,
    ShardTable,
    Skipped,
    Split,
)

SHA = "0123456789abcdef" * 4


def make(**changes: Any) -> Manifest:
    plain: dict[str, Any] = {
        "format": "hdf5",
        "encoding": "float16",
        "records": 3,
        "columns": (
            Column("image", "fixed", "float16", (3, 2, 2), "CHW", None, 72, type="image"),
            Column("label", "fixed", "int64", classes=("ant", "bée\udcff"), nbytes=24, digest=SHA, type="label"),
            Column("key", "ragged", "uint8", nbytes=7, digest=SHA, type="text"),
            Column("checksum", "fixed", "uint64", nbytes=24, digest=SHA),
        ),
        "origin": Origin("imagefolder", "cats\n", 2, SHA),
        "splits": (Split("train", 0, 2), Split("val", 2, 3)),
        "normalization": Normalization((0.5, 0.25, 1.0), (0.1, 0.2, 0.3)),
        "options": {"size": 224, "quality": None, "fit": "crop", "scale": 0.5, "exif": False},
        "versions": {"packstore": "0.1.0"},
        "skipped": (Skipped("a/b.jpg", "empty"),),
        "records_digest": "c" * 32,
        "shards": ShardTable.from_shards([Shard("shard-00000.h5", 3, 1000, 72, "c" * 32, SHA, SHA)], ".h5"),
    }
    return Manifest(**(plain | changes))


def resealed(plain: dict[str, Any]) -> str:
    """JSON with a right digest around whatever is in it."""
    plain = {k: v for k, v in plain.items() if k != "digest"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return json.dumps(plain | {"digest": hashlib.sha256(text.encode()).hexdigest()})


def test_both_ways() -> None:
    manifest = make()
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text.encode()).to_json() == text
    assert text.isascii()
    assert manifest.digest == json.loads(text)["digest"] == json.loads(resealed(json.loads(text)))["digest"]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.mark.slow
@given(
    st.dictionaries(st.text(), SCALARS),
    st.lists(st.builds(Skipped, st.text(st.characters(codec=None)), st.text())),
)  # fmt: skip
def test_any_text_and_number_both_ways(options: dict[str, Any], skipped: list[Skipped]) -> None:
    manifest = make(options=options, skipped=tuple(skipped))
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.slow
def test_every_flipped_byte_is_found_or_says_the_same() -> None:
    manifest = make()
    text = manifest.to_json().encode()
    same = 0
    for position in range(len(text)):
        for mask in (1, 0x20, 0x80):
            flipped = text[:position] + bytes([text[position] ^ mask]) + text[position + 1 :]
            try:
                found = Manifest.from_json(flipped)
            except ManifestError:
                continue
            assert found == manifest
            same += 1
    assert same <= 8  # the hexadecimal digits of two escapes may be capitals


def test_every_shortened_text_is_found() -> None:
    text = make().to_json()
    for size in range(len(text)):
        with pytest.raises(ManifestError):
            Manifest.from_json(text[:size])


@pytest.mark.slow
@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_other_json_is_a_manifest_error(value: Any) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps(value))


@given(
    path=st.sampled_from(
        [(k,) for k in json.loads(make().to_json()) if k != "digest"]
        + [("columns", 0, k) for k in dataclasses.asdict(make().columns[0])]
        + [("splits", 0, "start"), ("splits", 1, "name"), ("shards", "length"), ("shards", "suffix")]
        + [("origin", "kind"), ("normalization", "mean"), ("skipped", 0, "key")]
    ),
    value=st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3) | st.lists(st.none())
    | st.just({}) | st.just([[]]) | st.just(10**400),
)  # fmt: skip
def test_a_sealed_manifest_with_one_odd_value(path: tuple[Any, ...], value: Any) -> None:
    """Somebody else's program may seal anything: it is a manifest that writes itself the same, or a ManifestError."""
    plain = json.loads(make().to_json())
    place = plain
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    try:
        manifest = Manifest.from_json(resealed(plain))
    except ManifestError:
        return
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '"x"', "{}", "null", "\x00", '{"format_version":true}', b"\xff\xfe", "[" * 5000]
)
def test_no_manifest_at_all(text: str | bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(text)


def test_a_number_that_is_too_large() -> None:
    plain = json.loads(make().to_json())
    plain["normalization"]["mean"][0] = 10**400
    with pytest.raises(ManifestError, match="too large"):
        Manifest.from_json(resealed(plain))


def test_newer_version() -> None:
    plain = json.loads(make().to_json()) | {"format_version": FORMAT_VERSION - 1}
    with pytest.raises(ManifestError, match="layout 1, written by an older packstore; pack it again"):
        Manifest.from_json(resealed(plain))
    plain = json.loads(make().to_json()) | {"format_version": FORMAT_VERSION + 1}
    with pytest.raises(ManifestError, match="upgrade packstore"):
        Manifest.from_json(resealed(plain))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "zarr"},
        {"encoding": ""},
        {"encoding": "GIF"},
        {"encoding": "a\nb"},
        {"encoding": "x" * 65},
        {"records": -1},
        {"records": 4},
        {"columns": ()},
        {"columns": make().columns[1:]},
        {"columns": (*make().columns, make().columns[1])},
        {"columns": make().columns[:3]},
        {"splits": (Split("train", 0, 2),)},
        {"splits": (Split("train", 0, 2), Split("val", 1, 3))},
        {"splits": (Split("a", 0, 2), Split("a", 2, 3))},
        {"splits": (Split("a", 1, 3),)},
        {"records_digest": "c" * 31},
        {"shards": ShardTable.from_shards([Shard("shard-00000.h5", 2, 1, 72, "c" * 32, SHA, SHA)], ".h5")},
        {"shards": ShardTable.from_shards([Shard("shard-00000.h5", 3, 1, 71, "c" * 32, SHA, SHA)], ".h5")},
    ],
)
def test_impossible_manifests(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match="impossible"):
        make(**changes)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Column("Label", "fixed", "int64"),
        lambda: Column("manifest", "fixed", "int64"),
        lambda: Column("a/b", "fixed", "int64"),
        lambda: Column("label", "variable", "int64", type="label"),  # type: ignore[arg-type]
        lambda: Column("label", "fixed", "object", type="label"),
        lambda: Column("label", "fixed", "int64", (-1,), type="label"),
        lambda: Column("key", "ragged", "int64", type="text"),
        lambda: Column("key", "ragged", "uint8", (3,), type="text"),
        lambda: Column("image", "fixed", "uint8", layout="WHC", type="image"),
        lambda: Column("label", "fixed", "int64", nbytes=-1, type="label"),
        lambda: Column("label", "fixed", "int64", digest="abc", type="label"),
        lambda: Split("", 0, 1),
        lambda: Split("a", 2, 1),
        lambda: Split("a", -1, 1),
        lambda: Shard("../shard-00000.h5", 1, 1, 1, "c" * 32, SHA, SHA),
        lambda: Shard("shard-000001.h5", 1, 1, 1, "c" * 32, SHA, SHA),
        lambda: Shard("shard-00000.h5", 0, 1, 1, "c" * 32, SHA, SHA),
        lambda: Shard("shard-00000.h5", 1, -1, 1, "c" * 32, SHA, SHA),
        lambda: Shard("shard-00000.h5", 1, 1, 1 << 62, "c" * 32, SHA, SHA),
        lambda: Shard("shard-00000.h5", 1, 1, 1, SHA, SHA, SHA),
        lambda: Shard("shard-00000.h5", 1, 1, 1, "c" * 32, "x", SHA),
        lambda: Shard("shard-00000.h5", 1, 1, 1, "c" * 32, SHA, "x"),
        lambda: ShardTable(0, SHA, ".h5"),
        lambda: ShardTable(1, "x", ".h5"),
        lambda: ShardTable(1, SHA, "/../x"),
        lambda: Normalization((0.5,), (1.0, 1.0)),
        lambda: Normalization((), ()),
        lambda: Normalization((0.5, 0.5, float("nan")), (1.0, 1.0, 1.0)),
        lambda: Normalization((0.5, 0.5, 0.5), (1.0, 0.0, 1.0)),
        lambda: Normalization((0.5, 0.5, 10**400), (1.0, 1.0, 1.0)),
        lambda: Normalization((0.5, 0.5, 0.5), (1.0, 10**400, 1.0)),
        lambda: Normalization((0.5, 0.5, 0.5), (1.0, 5e-324, 1.0)),
        lambda: Normalization((0.5, 0.5, 1e308), (1.0, 1.0, 1e-3)),
        lambda: Column("label", "fixed", "int64", classes=("a", "b", "a"), type="label"),
        lambda: Column("label", "fixed", "int64", classes=("a", 3), type="label"),  # type: ignore[arg-type]
    ],
)
def test_impossible_parts(call: Any) -> None:
    with pytest.raises(ManifestError, match="impossible"):
        call()


def test_dataset_digest_is_about_the_dataset() -> None:
    digest = make().dataset_digest
    same = make(format="lmdb", shards=None, versions={}, options={}, origin=Origin("flat", "x"), skipped=())
    assert same.dataset_digest == digest
    columns = list(make().columns)
    columns[1] = dataclasses.replace(columns[1], classes=("ant", "bee"))
    image = dataclasses.replace(columns[0], dtype="bfloat16")
    for changes in (
        {"splits": ()},
        {"normalization": None},
        {"records_digest": "d" * 32},
        {"columns": tuple(columns)},
        {"encoding": "bfloat16", "columns": (image, *make().columns[1:])},
    ):
        assert make(**changes).dataset_digest != digest


IMAGES = {
    "original": lambda: Column("image", "ragged", "uint8", type="image"),
    "fixed uint8": lambda: Column("image", "fixed", "uint8", (2, 2, 3), "HWC", None, 36, type="image"),
    "ragged uint8": lambda: Column("image", "ragged", "uint8", (), "HWC", type="image"),
    "float16": lambda: Column("image", "fixed", "float16", (3, 2, 2), "CHW", None, 72, type="image"),
    "float32": lambda: Column("image", "fixed", "float32", (3, 2, 2), "CHW", None, 144, type="image"),
    "grey": lambda: Column("image", "fixed", "uint8", (2, 2, 1), "HWC", None, 12, type="image"),
    "float16 HWC": lambda: Column("image", "fixed", "float16", (2, 2, 3), "HWC", None, 72, type="image"),
    "two dimensions": lambda: Column("image", "fixed", "uint8", (2, 3), "HWC", None, 18, type="image"),
    "uint8 CHW": lambda: Column("image", "fixed", "uint8", (3, 2, 2), "CHW", None, 36, type="image"),
    "uint8 without a layout": lambda: Column("image", "fixed", "uint8", (2, 2, 3), None, None, 36, type="image"),
}
GOOD = {
    "original": ["original"],
    "jpeg": ["original"],
    "uint8": ["fixed uint8"],
    "float16": ["float16"],
    "float32": ["float32"],
    "bfloat16": [],
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("encoding", GOOD)
def test_the_image_column_is_what_the_encoding_makes_it(encoding: str, image: str) -> None:
    if image in GOOD[encoding]:
        make_with(image, encoding)
        return
    with pytest.raises(ManifestError, match="impossible"):
        make_with(image, encoding)
    if (encoding, image) == ("uint8", "ragged uint8"):
        make_with(image, encoding, Column("shape", "fixed", "int32", (3,), None, None, 36))


def make_with(image: str, encoding: str, *more: Column) -> Manifest:
    columns = (IMAGES[image](), *make().columns[1:], *more)
    return make(encoding=encoding, columns=columns, normalization=None, shards=None)


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_column_of_a_plug_in_says_itself_what_it_holds(image: str) -> None:
    """An encoding that packstore does not know: its stores open all the same."""
    if image not in ("original", "fixed uint8", "float16", "float32"):
        with pytest.raises(ManifestError, match="impossible"):
            make_with(image, "jxl")
        return
    made = make_with(image, "jxl")
    assert Manifest.from_json(made.to_json()) == made
    assert made.holds_files == (image == "original")
    assert made.holds_floats == image.startswith("float")


@pytest.mark.parametrize(
    "column",
    [
        Column("key", "fixed", "int64", nbytes=24),
        Column("checksum", "fixed", "int64", nbytes=24),
        Column("checksum", "fixed", "uint64", (1,), nbytes=24),
        Column("checksum", "ragged", "uint8"),
    ],
)
def test_columns_that_every_store_has(column: Column) -> None:
    with pytest.raises(ManifestError, match=f"impossible column '{column.name}'"):
        make(columns=tuple(column if c.name == column.name else c for c in make().columns))


def test_normalization_belongs_to_floats() -> None:
    with pytest.raises(ManifestError, match="normalization"):
        make(encoding="uint8", columns=(IMAGES["fixed uint8"](), *make().columns[1:]))


def test_lookups() -> None:
    manifest = make()
    assert manifest.image.record_nbytes == 24
    assert manifest.classes == ("ant", "bée\udcff")
    assert len(manifest.split("train")) == 2
    with pytest.raises(KeyError, match="no column 'x'; columns: image, label, key, checksum"):
        manifest.column("x")
    with pytest.raises(KeyError, match="no split 'x'; splits: train, val"):
        manifest.split("x")
    unlabelled = make(columns=(manifest.columns[0], *manifest.columns[2:]))
    assert unlabelled.classes is None


def test_ranges_are_those_of_the_splits_or_all_records() -> None:
    assert make().ranges == [("train", 0, 2), ("val", 2, 3)]
    assert make(splits=()).ranges == [("", 0, 3)]
