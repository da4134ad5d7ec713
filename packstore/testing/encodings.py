"""The contract of an encoding as tests. Each encoding inherits :class:`EncodingSuite` and adds tests of its own."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packstore.checking.verification import verify
from packstore.core.columns import CHECKSUM, KEY, NUMPY_DTYPE
from packstore.core.errors import SampleError, UsageError
from packstore.core.manifest import Manifest, Origin
from packstore.core.registry import ENCODINGS
from packstore.images.decoders import get_decoder
from packstore.images.encode import EncodedImage, EncodeOptions, Encoder, Encoding, SourceImages
from packstore.images.encode.arrays import mean_and_std, to_float32
from packstore.packing import ConvertOptions
from packstore.packing.conversion import convert
from packstore.packing.plan import make_plan
from packstore.packing.run import Run
from packstore.stores import open_store

_GEOMETRY: dict[str, Any] = {"size": (16, 12), "resize": 20, "max_side": 24, "exif_transpose": True}


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Returns a smooth RGB picture, a different one for each seed."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [np.sin(x / (6 + channel + seed % 7) + seed) + np.cos(y / (9 + seed % 5)) for channel in range(3)]
    return (np.stack(planes, -1) * 60 + 127).astype(np.uint8)


def image_file(pixels: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    """Encodes pixels as an image file of ``kind``, a format of Pillow."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


_DAMAGED = {
    "empty": b"",
    "text": b"this is not an image",
    "header": b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    **{kind: (data := image_file(picture(60, 80), kind))[: len(data) * 2 // 3] for kind in ("JPEG", "PNG", "WEBP")},
}
"""Files that are not images, or truncated images."""


class EncodingSuite:
    """Tests of the duties of every encoding. Inherit it to prove an encoding::

        class TestPng(EncodingSuite):
            encoding = "png"  # registered before, or an entry point

    Attributes:
        encoding: Its name in the registry.
        variants: Further fields of :class:`EncodeOptions`. Most tests run with each variant. If all images must have
            one size, every variant needs a ``size``.
        tolerance: Largest mean difference of pixel values (0 to 255) before and after; 0 for a lossless encoding.
    """

    encoding: ClassVar[str]
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    tolerance: ClassVar[float] = 0

    def files(self) -> dict[str, bytes]:
        """Returns image files of several kinds and sizes by name. Override to add more."""
        photo = picture(40, 61, 1)
        return {
            "png": image_file(picture(23, 37)),
            "jpeg": image_file(photo, "JPEG"),
            "bmp": image_file(photo[:, :33], "BMP"),
            "grey": image_file(photo[..., 0]),
            "one pixel": image_file(photo[:1, :1]),
        }

    def encoders(self, source: str = "original") -> Iterator[Encoder]:
        """Yields a new encoder for each of :attr:`variants`, for images with the encoding ``source``."""
        for variant in self.variants:
            yield Encoder(EncodeOptions(self.encoding, **variant), source)

    def pixels(self, encoder: Encoder, encoded: EncodedImage) -> NDArray[np.uint8]:
        """Decodes a record to pixels as readers do."""
        encoding = encoder.encoding
        if encoding.layout is None:
            return get_decoder().decode(encoded.record)
        assert encoded.shape is not None
        values = np.frombuffer(encoded.record, NUMPY_DTYPE[encoding.dtype])
        height, width, channels = encoded.shape
        if encoding.layout == "HWC":
            return values.reshape(height, width, channels)
        mean, std = (np.array(m) for m in mean_and_std(encoder.options.normalization))
        planes = to_float32(values, encoding.dtype).reshape(channels, height, width)
        pixels: NDArray[np.uint8] = (
            np.rint((planes.transpose(1, 2, 0) * std + mean) * 255).clip(0, 255).astype(np.uint8)
        )
        return pixels

    def test_it_is_registered(self) -> None:
        """The registry has a valid class under the encoding's name."""
        encoding = ENCODINGS[self.encoding]
        assert issubclass(encoding, Encoding)
        assert encoding.name == self.encoding
        assert encoding.layout in (None, "HWC", "CHW")
        assert ("float" in encoding.dtype) if encoding.layout == "CHW" else (encoding.dtype in ("uint8", "uint16"))
        assert encoding.accepts <= {field.name for field in dataclasses.fields(EncodeOptions)}

    @pytest.mark.parametrize("source", ["original", "uint8"])
    @pytest.mark.parametrize("kind", ["PNG", "JPEG"])
    def test_pixels_come_back(self, source: str, kind: str) -> None:
        """A record decodes to the pixels of its source within :attr:`tolerance`."""
        for encoder in self.encoders(source):
            wanted = SourceImages(encoder.options, ENCODINGS[source])
            for seed, size in enumerate([(48, 64), (33, 31)]):
                data = image_file(picture(*size, seed), kind)
                image = data if source == "original" else get_decoder().decode(data)
                found, expected = self.pixels(encoder, encoder("key", image)), wanted.pixels("key", image)
                assert found.shape == expected.shape
                assert np.abs(found.astype(int) - expected).mean() <= self.tolerance

    def test_columns_fit_the_records(self) -> None:
        """A manifest can hold the columns, and each record has the size and shape that they state."""
        for encoder in self.encoders():
            image, *others = columns = encoder.columns()
            assert [column.name for column in others] == ["shape"] * len(others)
            rest = (KEY, CHECKSUM)
            manifest = Manifest("hdf5", encoder.encoding.name, 0, (*columns, *rest), Origin("flat", "x"))
            assert Manifest.from_json(manifest.to_json()) == manifest
            for name, data in self.files().items():
                record, shape, *_ = encoder(name, data)
                nbytes = memoryview(record).nbytes
                if image.kind == "fixed":
                    assert nbytes == image.record_nbytes
                elif others:
                    assert shape is not None
                    assert nbytes == np.prod(shape)
                if shape is not None:
                    assert self.pixels(encoder, EncodedImage(record, shape)).shape == shape

    def test_bytes_follow_from_the_image_and_the_options_alone(self) -> None:
        """Records are equal in any order, from many threads, and from a fresh encoder."""
        files = self.files()
        for first, second in zip(self.encoders(), self.encoders(), strict=True):
            expected = {name: bytes(first(name, data).record) for name, data in files.items()}
            names = [*files, *reversed(files)] * 8
            with ThreadPoolExecutor(8) as pool:
                records = pool.map(lambda name, encoder=second: bytes(encoder(name, files[name]).record), names)
                assert all(record == expected[name] for name, record in zip(names, records, strict=True))

    def test_records_compare_equal_to_themselves(self) -> None:
        """``compare`` finds no difference between an image and its record."""
        for encoder in self.encoders():
            for name, data in self.files().items():
                record, shape, *_ = encoder(name, data)
                assert encoder.compare(name, data, record) is None
                assert encoder.compare(name, data, bytes(record), shape) is None

    def test_records_of_other_images_compare_unequal(self) -> None:
        """``compare`` finds another image, another size, and a changed patch."""
        image = picture(70, 90, 2)
        data = image_file(image, "JPEG")
        patched = image.copy()
        patched[:45, :45] ^= 0x80
        for encoder in self.encoders():
            record, shape, *_ = encoder("key", data)
            for other in (picture(70, 90, 3), picture(35, 90, 2), patched):
                encoded = encoder("key", image_file(other, "JPEG"))
                assert encoder.compare("key", data, *encoded[:2]) is not None
                assert encoder.compare("key", image_file(other, "JPEG"), record, shape) is not None

    def test_damage_is_found(self) -> None:
        """``compare`` finds empty and truncated records. In stored pixels, it finds a changed value."""
        data = image_file(picture(70, 90))
        for encoder in self.encoders():
            record = bytearray(encoder("key", data).record)
            assert encoder.compare("key", data, b"") is not None
            assert encoder.compare("key", data, record[: len(record) * 2 // 3]) is not None
            if encoder.encoding.layout is not None:
                record[-1] ^= 0x40  # the high byte of a value
                assert encoder.compare("key", data, record) is not None

    @pytest.mark.parametrize("name", _DAMAGED)
    def test_a_damaged_file_is_named(self, name: str) -> None:
        """A file that is truncated or no image raises :class:`SampleError` with its key."""
        for encoder in self.encoders():
            with pytest.raises(SampleError) as caught:
                encoder("class/x.jpg", _DAMAGED[name])
            assert caught.value.key == "class/x.jpg"
            assert caught.value.reason

    @pytest.mark.parametrize("option", _GEOMETRY)
    def test_options_apply_or_are_refused(self, option: str) -> None:
        """An option of size or orientation changes the record's shape as it should. An encoding without this option
        raises :class:`UsageError`."""
        options = {"encoding": self.encoding, option: _GEOMETRY[option]}
        if option not in ENCODINGS[self.encoding].accepts:
            with pytest.raises(UsageError, match="cannot apply"):
                EncodeOptions(**options)
            return
        image = picture(30, 40)
        encoder = Encoder(EncodeOptions(**options), "uint8", (30, 40, 3))
        expected = SourceImages(encoder.options, ENCODINGS["uint8"]).pixels("key", image)
        assert encoder("key", image).shape == expected.shape

    def test_a_store_of_it(self, tmp_path: Path) -> None:
        """Packs files into a store, verifies it against them, and converts it to another format unchanged."""
        (tmp_path / "images").mkdir()
        for number in range(5):
            (tmp_path / f"images/{number}.png").write_bytes(image_file(picture(40, 30, number)))
        for number, variant in enumerate(self.variants):
            options = dict(variant)
            if "normalization" in ENCODINGS[self.encoding].accepts:
                options["normalize"] = options.pop("normalization", None) or "none"
            store, copy = tmp_path / f"{number}.lmdb", tmp_path / f"{number}.h5"
            manifest = convert(tmp_path / "images", store, encoding=self.encoding, **options).manifest
            assert manifest.encoding == self.encoding
            assert verify(store, against=tmp_path / "images", decode=True).problems == ()
            moved = convert(store, copy).manifest
            assert moved.dataset_digest == manifest.dataset_digest
            assert verify(copy, against=store).problems == ()
            with open_store(store) as one, open_store(copy) as other:
                assert [bytes(one.view(i)) for i in range(5)] == [bytes(other.view(i)) for i in range(5)]

    def test_an_interrupted_conversion_goes_on_with_the_same_libraries(self, tmp_path: Path) -> None:
        """The fingerprint by which a conversion resumes is the same for equal options. It contains the versions of
        libraries."""
        (tmp_path / "images").mkdir()
        (tmp_path / "images/x.png").write_bytes(image_file(picture(40, 30)))
        options = ConvertOptions(encoding=self.encoding, size=self.variants[0].get("size"))
        prints = []
        for _ in range(2):
            plan = make_plan(tmp_path / "images", tmp_path / "x.lmdb", options)
            encoder = plan.encoder
            assert all(isinstance(text, str) for item in encoder.versions().items() for text in item)
            assert bool(encoder.versions()) != encoder.passes_through
            prints.append(json.dumps(Run(plan).fingerprint))
            assert all(json.dumps(version) in prints[-1] for version in encoder.versions().values())
            plan.source.close()
        assert prints[0] == prints[1]
