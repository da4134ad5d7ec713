"""The contract of a column type as tests: each type inherits :class:`ColumnTypeSuite`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packstore import PackedDataset, PackedLoader, UsageError, augment
from packstore.checking.audit import audit
from packstore.checking.verification import verify
from packstore.core.column_types.base import ColumnType
from packstore.core.columns import CHECKSUM, KEY, NUMPY_DTYPE, Column, from_stored, shape_to_stored, to_stored
from packstore.core.errors import StoreError
from packstore.core.fields import Field
from packstore.core.findings import list_kinds
from packstore.core.manifest import Manifest, Origin
from packstore.core.registry import COLUMN_TYPES
from packstore.exports.run import export
from packstore.packing.conversion import convert
from packstore.packing.writer import Writer
from packstore.seeing.drawing import draw_record
from packstore.seeing.sheet import write_sheet
from packstore.seeing.sheet_options import SheetOptions
from packstore.seeing.view.images import BrowserImages
from packstore.seeing.view.record import describe_record
from packstore.stores import StoreBuilder, open_store
from packstore.training.loader.options import Collate


class ColumnTypeSuite:
    """Tests of one column type. Inherit it in a class ``Test…``, and set the attributes without a default.

    Attributes:
        type: Its name in the registry.
        field: A declaration with which the values are packed.
        optional: The declaration with missing values allowed; None if the type has no missing values.
        values: Values of different kinds: the smallest, usual ones, large ones.
        wrong: Values that the type has to refuse.
        placed: A value without faults, for an image of 5 x 4 pixels (height x width). None: the last of :attr:`values`.
        mirrored: The value :attr:`placed` after mirroring the image. None if the type has no rows that move.
        joined: The value :attr:`placed` in the upper left of a mosaic of 10 x 8 pixels; None if it stays as it is.
        faulty: A value with a fault for each kind of finding in :attr:`ColumnType.faults`, for such an image.
    """

    type: ClassVar[str]
    field: ClassVar[Field]
    optional: ClassVar[Field | None] = None
    values: ClassVar[Sequence[Any]]
    wrong: ClassVar[Sequence[Any]]
    placed: ClassVar[Any] = None
    mirrored: ClassVar[Any] = None
    joined: ClassVar[Any] = None
    faulty: ClassVar[Mapping[str, Any]] = {}

    def write(self, path: Path, field: Field, values: Sequence[Any]) -> Manifest:
        """Writes a store with a record for each value: a small image, and the column ``value``.

        Returns the store's manifest.
        """
        with Writer(path, {"image": "image", "value": field}) as writer:
            for number, value in enumerate(values):
                writer.add(image=_make_image(number), value=value)
        assert writer.report is not None
        return writer.report.manifest

    def write_unchecked(self, path: Path, column: Column, values: Sequence[Any]) -> None:
        """Writes an LMDB like :meth:`write`, of numbers, without the checks of packing."""
        image = Column("image", "ragged", "uint8", type="image")
        columns = (image, column, *column.companions, KEY, CHECKSUM)
        with StoreBuilder(path, Manifest("lmdb", "original", 0, tuple(columns), Origin("made", "suite"))) as builder:
            for number, value in enumerate(values):
                array = np.asarray(value, NUMPY_DTYPE[column.dtype])
                row = {"value": [array.tobytes()] if column.kind == "ragged" else array[None], "key": [str(number)]}
                if column.layout is not None:
                    row[column.shape_name] = shape_to_stored(column, array)[None]
                builder.append([_make_image(number)], row, "")
            builder.commit()

    def column(self, folder: Path) -> Column:
        """Writes a store of the first value in ``folder`` and returns the column of the values."""
        return self.write(folder / "column.lmdb", self.field, self.values[:1]).column("value")

    def test_the_registry_has_it(self) -> None:
        """The type is registered under its name."""
        assert isinstance(COLUMN_TYPES[self.type], ColumnType)
        assert COLUMN_TYPES[self.type].name == self.type

    @pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
    def test_values_come_back(self, suffix: str, tmp_path: Path) -> None:
        """A store of each format returns the values, and verifying it finds no problem."""
        self.write(tmp_path / f"a.{suffix}", self.field, self.values)
        with open_store(tmp_path / f"a.{suffix}") as reader:
            assert reader.manifest.column("value").type == self.type
            for number, value in enumerate(self.values):
                assert _are_equal(reader.item("value", number), value)
        assert verify(tmp_path / f"a.{suffix}", decode=True).problems == ()

    def test_missing_values_come_back(self, tmp_path: Path) -> None:
        """A missing value reads as None, between others. Skipped if :attr:`optional` is None."""
        if self.optional is None:
            pytest.skip("a value is never missing")
        values = [each for value in self.values for each in (value, None)]
        self.write(tmp_path / "a.lmdb", self.optional, values)
        with open_store(tmp_path / "a.lmdb") as reader:
            for number, value in enumerate(values):
                found = reader.item("value", number)
                assert found is None if value is None else _are_equal(found, value)

    @pytest.mark.parametrize("kind", ["imagefolder", "mds", "parquet", "recordio", "tfds", "webdataset"])
    def test_exports_give_it_back(self, kind: str, tmp_path: Path) -> None:
        """Importing an export gives the same dataset digest. If the type has missing values, one is exported, too."""
        values = list(self.values) if self.optional is None else [None, *self.values]
        manifest = self.write(tmp_path / "a.lmdb", self.optional or self.field, values)
        export(tmp_path / "a.lmdb", tmp_path / "out", to=kind)
        again = convert(tmp_path / "out", tmp_path / "again.h5").manifest
        assert again.dataset_digest == manifest.dataset_digest

    def test_other_values_are_refused(self, tmp_path: Path) -> None:
        """Values of another type raise :class:`ValueError` that names the column."""
        column = self.column(tmp_path)
        for value in self.wrong:
            with pytest.raises(ValueError, match="column 'value'"):
                to_stored(column, value)

    def test_damaged_values_are_errors_or_values(self, tmp_path: Path) -> None:
        """Damaged bytes read as a value or raise :class:`StoreError`, and nothing else. Skipped for values of a fixed
        size."""
        column = self.column(tmp_path)
        if column.kind == "fixed":
            pytest.skip("any bytes of the right size are numbers")
        values = [bytes(to_stored(column, value)) for value in self.values]

        @given(st.sampled_from(values), st.integers(0, 1 << 16), st.binary(max_size=9), st.integers(0, 1 << 16))
        def check(value: bytes, place: int, written: bytes, end: int) -> None:
            """Overwrites bytes of a stored value, cuts it off and reads it."""
            damaged = bytearray(value)
            place %= len(value) + 1
            damaged[place : place + len(written)] = written
            with suppress(StoreError):
                from_stored(column, bytes(damaged[: end % (len(damaged) + 1)]))

        check()

    def test_items_and_batches_have_the_values(self, tmp_path: Path) -> None:
        """Items of a dataset and batches of a loader have the same values, in the form of the type's collation."""
        self.write(tmp_path / "a.lmdb", self.field, self.values)
        dataset = PackedDataset(tmp_path / "a.lmdb", columns=("image", "value"))
        column = dataset.manifest.column("value")
        items = [dataset[number][1] for number in range(len(dataset))]
        if not column.traits.is_picture and column.form != "files":
            assert all(map(_are_equal, items, self.values))
        assert all(map(_are_equal, dataset[:][1], items))
        size = 1 if column.collation == "images" else len(items)
        batches = [batch[1] for batch in PackedLoader(dataset, size, output="numpy", collate=_list_of(column))]
        assert all(map(_are_equal, (value for batch in batches for value in batch), items))
        if column.collation in ("stack", "images"):
            assert all(isinstance(batch, np.ndarray) for batch in batches)
        if column.collation == "rows":
            [(_, (values, lengths))] = PackedLoader(dataset, size, output="numpy", collate={"value": "padded"})
            assert lengths.tolist() == list(map(len, items))
            assert all(map(_are_equal, (row[:length] for row, length in zip(values, lengths, strict=True)), items))

    def test_listings_and_the_page_show_it(self, tmp_path: Path) -> None:
        """``packstore info`` describes the column. The page gets each value as JSON of less than 1 MiB."""
        self.write(tmp_path / "a.lmdb", self.field, self.values)
        with open_store(tmp_path / "a.lmdb") as reader:
            column = reader.manifest.column("value")
            assert column.traits.describe(column).isprintable()
            assert column.traits.describe(column)
            for number in range(len(self.values)):
                [shown] = describe_record(reader, BrowserImages(reader), number)["columns"]
                assert (shown["name"], shown["type"]) == ("value", self.type)
                assert shown["as"] in ("numbers", "classes", "text", "json", "bytes", "image", "images", "mask")
                assert {"value", "nbytes"} & {*shown}
                assert len(json.dumps(shown, allow_nan=False)) < 1 << 20

    def test_it_is_drawn_over_the_image(self, tmp_path: Path) -> None:
        """Thumbnails, contact sheets and the page draw the value :attr:`placed` if its type draws the column.

        Else thumbnails and the page draw nothing. A sheet then refuses the column, unless it holds lists of images.
        """
        self.write(tmp_path / "a.lmdb", self.field, [self.values[-1] if self.placed is None else self.placed])
        with open_store(tmp_path / "a.lmdb") as reader:
            column = reader.manifest.column("value")
            is_drawn = column.traits.draws(column)
            assert column.traits.drawn_as or not is_drawn
            plain = np.full((50, 40, 3), 128, np.uint8)
            assert (draw_record(plain, reader, 0, False) != plain).any() == is_drawn
            [shown] = describe_record(reader, BrowserImages(reader), 0)["columns"]
            assert bool(shown.get("shapes") or shown["as"] == "mask") == is_drawn
        options = SheetOptions(columns=["value"])
        if is_drawn or column.form == "files":
            assert write_sheet(tmp_path / "a.lmdb", tmp_path / "sheet.png", options) == 0
            return
        with pytest.raises(UsageError, match="no column 'value'"):
            write_sheet(tmp_path / "a.lmdb", tmp_path / "sheet.png", options)

    def test_audits_find_its_faults(self, tmp_path: Path) -> None:
        """An audit finds each fault of :attr:`faulty` in its record, and no fault in the value :attr:`placed`.

        :attr:`faulty` has exactly the kinds that the type declares.
        """
        column = self.column(tmp_path)
        assert self.faulty.keys() == column.traits.faults.keys()
        assert {*column.traits.faults} <= {*list_kinds()}
        good = self.values[-1] if self.placed is None else self.placed
        if not self.faulty:
            self.write(tmp_path / "a.lmdb", self.field, [good])
        else:
            self.write_unchecked(tmp_path / "a.lmdb", column, [good, *self.faulty.values()])
        report = audit(tmp_path / "a.lmdb", pixels=True, mask_classes=100)
        for number, kind in enumerate(self.faulty, 1):
            assert [finding.records for finding in report.of(kind)] == [(number,)]
        assert not report.of("damaged")

    def test_values_move_with_the_image(self, tmp_path: Path) -> None:
        """Mirroring, mirroring twice and a mosaic of four images move the value :attr:`placed` as the type says.

        A mosaic is refused for images, class numbers and maps of several channels.
        """
        self.write(tmp_path / "a.lmdb", self.field, [self.values[-1] if self.placed is None else self.placed])
        dataset = PackedDataset(tmp_path / "a.lmdb", columns=("image", "value"))
        column = dataset.manifest.column("value")
        traits, value = column.traits, dataset[0][1]

        def load(**options: Any) -> Any:
            """Loads the value in a batch of one record."""
            [(_, batch)] = PackedLoader(dataset, 1, output="numpy", collate=_list_of(column), **options)
            return batch[0]

        mirror = augment.RandomHorizontalFlip(1.0)
        assert traits.moves == (traits.lies_on_image or self.mirrored is not None)
        if traits.lies_on_image or column.collation == "images":
            mirrored = np.asarray(value)[..., ::-1]
        else:
            mirrored = value if self.mirrored is None else self.mirrored
        assert _are_equal(load(augment=[mirror]), mirrored)
        assert _are_equal(load(augment=[mirror, mirror]), value)
        mosaic = augment.Mosaic((10, 8), (0.5, 0.5))
        if column.holds_images or traits.has_classes or (traits.lies_on_image and value.ndim > 2):
            with pytest.raises(UsageError, match=r"Mosaic (shows|joins)"):
                load(mix=mosaic)
            return
        joined = load(mix=mosaic)
        if traits.lies_on_image:
            assert _are_equal(joined, np.tile(value, (2, 2)))
        elif traits.moves:
            assert len(joined) == 4 * len(value)
            assert _are_equal(joined[: len(value)], value if self.joined is None else self.joined)
            assert not traits.rows_are_objects or len(load(mix=mosaic, min_area=1000)) == 0
        else:
            assert _are_equal(joined, value)


def _make_image(number: int) -> bytes:
    """Makes a PNG file of 5 x 4 pixels, a different one for each number."""
    file = io.BytesIO()
    Image.new("RGB", (4, 5), (number, 7, 7)).save(file, "PNG")
    return file.getvalue()


def _list_of(column: Column) -> dict[str, Collate]:
    """Returns the option ``collate`` of a loader for a column: lists for lists of images, else the default."""
    return {column.name: "list"} if column.collation == "image_lists" else {}


def _are_equal(found: Any, value: Any) -> bool:
    """Tells if two values are equal; they may be arrays, tensors, or lists of them."""
    if isinstance(found, list) and found and hasattr(found[0], "shape"):
        return len(found) == len(value) and all(map(_are_equal, found, value))
    return np.array_equal(found, value) if hasattr(found, "shape") else bool(found == value)
