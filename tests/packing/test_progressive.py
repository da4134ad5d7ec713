"""``--progressive baseline``: the same pixels and metadata in files of one scan, and nothing else is touched."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import packstore
from packstore.cli import cli
from packstore.images.decoders import get_decoder
from packstore.images.engine import get_engine
from packstore.stores import open_store
from tests.internals import UsageError, backends, sniff
from tests.makers.engine_checks import good, save
from tests.makers.images import whole_images
from tests.makers.jpegs import noisy
from tests.makers.stores import content

Need = Callable[[str, bool], None]
BASELINE: dict[str, Any] = {"progressive": "baseline"}
PROFILE = b"profile " * 20


@pytest.fixture(scope="module", autouse=True)
def library(request: pytest.FixtureRequest) -> None:
    need: Need = request.getfixturevalue("need")
    need("turbojpeg", backends.find_library("tjTransform") is not None)


def scans(height: int, width: int, sampling: str = "420", **options: Any) -> bytes:
    return save(noisy(height, width, height), sampling, progressive=True, **options)


def cmyk() -> bytes:
    out = io.BytesIO()
    Image.fromarray(noisy(30, 40)).convert("CMYK").save(out, "JPEG", progressive=True)
    return out.getvalue()


def damaged() -> bytes:
    """A file that has an end, but a scan with too few bytes, of which libjpeg warns."""
    data = scans(120, 150)
    return data[: len(data) * 2 // 3] + b"\xff\xd9"


def progressive_files() -> dict[str, bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "420": scans(61, 83),
        "422": scans(50, 33, "422"),
        "444": scans(40, 90, "444", quality=97),
        "440": scans(44, 62, "440"),
        "gray": scans(70, 41, "gray"),
        "tiny": scans(1, 1),
        "cmyk": cmyk(),
        "exif": scans(57, 80, exif=exif, icc_profile=PROFILE, comment=b"a comment"),
        "restarts": scans(64, 64, "420", restart_marker_rows=1),
    }


@pytest.fixture(scope="module")
def progressive_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Progressive files of all kinds, a damaged one, and files of other kinds."""
    root = tmp_path_factory.mktemp("images") / "photos"
    (root / "many").mkdir(parents=True)
    (root / "other").mkdir()
    for name, data in progressive_files().items():
        (root / "many" / f"{name}.jpg").write_bytes(data)
    (root / "many" / "damaged.jpg").write_bytes(damaged())
    others = [(name, data) for name, data in whole_images().items() if name.startswith(("jpeg", "png"))]
    others += [(f"jpeg {name}", good()[name][0]) for name in ("420", "444 many restarts")]
    for letter, (name, data) in zip(ascii_lowercase, others, strict=False):
        (root / "other" / f"whole {letter}.{'jpg' if name.startswith('jpeg') else 'png'}").write_bytes(data)
    return root


def pack(source: Path, store: Path, **options: Any) -> packstore.ConvertReport:
    return packstore.convert(source, store, **BASELINE, **options)


def files_of(store: Path) -> dict[str, bytes]:
    with open_store(store) as reader:
        return {reader.key(i): bytes(reader.read(i)) for i in range(len(reader))}


def is_progressive(data: bytes) -> bool:
    return data[:2] == b"\xff\xd8" and sniff(data).progressive


@pytest.mark.slow
def test_pixels_and_metadata_stay_and_other_files_are_untouched(progressive_folder: Path, tmp_path: Path) -> None:
    report = pack(progressive_folder, tmp_path / "a.lmdb")
    assert report.manifest.options["progressive"] == "baseline"
    assert report.manifest.versions["TurboJPEG"].startswith("libjpeg-turbo ")
    decoder, changed = get_decoder("pillow"), 0
    for key, data in files_of(tmp_path / "a.lmdb").items():
        file = (progressive_folder / key).read_bytes()
        if key == "many/damaged.jpg" or not is_progressive(file):
            assert data == file, key
            continue
        changed += 1
        assert not sniff(data).progressive, key
        assert data[-2:] == b"\xff\xd9"
        np.testing.assert_array_equal(decoder.decode(data), decoder.decode(file), key)
        with Image.open(io.BytesIO(data)) as one, Image.open(io.BytesIO(file)) as other:
            assert (one.mode, one.getexif(), one.info.get("comment")) == (
                *(other.mode, other.getexif()),
                other.info.get("comment"),
            )
            assert one.info.get("icc_profile") == other.info.get("icc_profile")
            assert one.layer == other.layer  # type: ignore[attr-defined]
    assert changed >= len(progressive_files())
    (reason,) = report.kept
    assert reason.startswith("is damaged: ")
    assert report.kept[reason] == 1
    assert packstore.verify(tmp_path / "a.lmdb", decode=True, against=progressive_folder).problems == ()


@pytest.mark.slow
def test_what_becomes_baseline_has_an_index(progressive_folder: Path, tmp_path: Path) -> None:
    engine = get_engine()
    for number in range(2):  # of the other files pieces are too large
        data = scans(200 + number, 300)
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(data)
        assert engine.make_indexes([data]) == [b""]
    pack(tmp_path / "photos", tmp_path / "a.lmdb")
    with open_store(tmp_path / "a.lmdb") as reader:
        for i in range(2):
            assert bytes(reader.value("seek_index", i)) == engine.make_indexes([reader.read(i)])[0] != b""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
def test_the_same_bytes_each_time(progressive_folder: Path, tmp_path: Path, suffix: str) -> None:
    for name in "ab":
        pack(progressive_folder, tmp_path / f"{name}.{suffix}", encoding="original", workers=1 if name == "a" else 4)
    assert content(tmp_path / f"a.{suffix}") == content(tmp_path / f"b.{suffix}")


def test_what_comes_out_with_other_pixels_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(scans(61, 83))
    monkeypatch.setattr(backends, "make_baseline", lambda data: good()["420"][0])
    report = pack(tmp_path / "photos", tmp_path / "a.lmdb")
    assert report.kept == {"came out with other pixels": 1}
    assert files_of(tmp_path / "a.lmdb") == {"a.jpg": scans(61, 83)}


def test_the_summary_names_what_is_kept(progressive_folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["convert", str(progressive_folder), str(tmp_path / "a.lmdb"), "--progressive", "baseline"]
    )
    assert done.exit_code == 0, done.output
    assert "as is    1 progressive file that cannot become baseline:\n    is damaged: " in done.output
    assert "progressive baseline" in CliRunner().invoke(cli, ["info", str(tmp_path / "a.lmdb")]).output


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PACKSTORE_TURBOJPEG", "")
    backends._load_transform.cache_clear()
    yield
    backends._load_transform.cache_clear()


def test_without_the_library_it_is_an_error_with_advice(
    progressive_folder: Path, tmp_path: Path, no_library: None
) -> None:
    with pytest.raises(UsageError, match=r"apt install libturbojpeg0; or leave --progressive out"):
        pack(progressive_folder, tmp_path / "a.lmdb")
    assert list(tmp_path.iterdir()) == []
    packstore.convert(progressive_folder, tmp_path / "a.lmdb")


def test_an_older_library_is_used_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of before version 3 it does not know the option for optimal tables."""
    backends._load_transform()
    data = scans(61, 83)
    optimal = backends.make_baseline(data)
    monkeypatch.setattr(backends, "_OPTIMIZE", 0)
    usual = backends.make_baseline(data)
    assert len(optimal) <= len(usual)
    decoder = get_decoder("pillow")
    np.testing.assert_array_equal(decoder.decode(usual), decoder.decode(data))
    for wrong in (b"", b"no JPEG", data[:300]):
        with pytest.raises(backends.NotBaselineError, match="is damaged: "):
            backends.make_baseline(wrong)
    assert ctypes.sizeof(backends._Transform) == 40


@pytest.mark.slow
def test_a_store_grows_by_files_that_are_made_baseline(progressive_folder: Path, tmp_path: Path) -> None:
    store, whole = tmp_path / "a.lmdb", tmp_path / "whole.lmdb"
    (tmp_path / "first" / "many").mkdir(parents=True)
    (tmp_path / "first" / "many" / "a.jpg").write_bytes(scans(61, 83))
    pack(tmp_path / "first", store)
    packstore.append(store, progressive_folder)
    assert not any(is_progressive(data) for key, data in files_of(store).items() if not key.endswith("damaged.jpg"))
    assert packstore.verify(store, decode=True).ok
    # Of a store as well, whose files are those of its source.
    packstore.convert(progressive_folder, tmp_path / "plain.lmdb")
    pack(tmp_path / "first", whole)
    packstore.append(whole, tmp_path / "plain.lmdb")
    assert files_of(whole) == files_of(store)


@pytest.mark.slow
def test_from_store_to_store(progressive_folder: Path, tmp_path: Path) -> None:
    plain, made, copy = tmp_path / "plain.lmdb", tmp_path / "made.h5", tmp_path / "copy.lmdb"
    packstore.convert(progressive_folder, plain)
    pack(plain, made)
    packstore.convert(made, copy)
    pack(progressive_folder, tmp_path / "direct.h5")
    assert files_of(made) == files_of(copy) == files_of(tmp_path / "direct.h5")
    for store in (made, copy):
        assert open_store(store).manifest.options["progressive"] == "baseline"
        for source in (progressive_folder, plain, made):
            assert packstore.verify(store, against=source).problems == (), (store, source)


def test_it_is_for_files_that_are_kept(progressive_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="progressive is for the encoding original, not jpeg"):
        pack(progressive_folder, tmp_path / "a.lmdb", encoding="jpeg")
    with pytest.raises(UsageError, match="progressive should be 'baseline' or None, got 'keep'"):
        packstore.convert(progressive_folder, tmp_path / "a.lmdb", progressive="keep")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
