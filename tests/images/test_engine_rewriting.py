"""Files made seekable by the engine: byte for byte what ``jpegtran`` makes of them, or nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packstore.images.engine import engine_problem, get_engine
from packstore.images.seekable import NotSeekableError, check_index, make_seekable, segments
from packstore.images.seekable import rewrite as rewrite_module
from packstore.images.seekable.index import without_index
from packstore.images.seekable.transform import transform
from tests.conftest import SharedData
from tests.makers.engine_checks import MAX_PIXELS, good, indexed, large, noisy, refused_files, save, without
from tests.makers.tiers import examples

Need = Callable[[str, bool], None]


@pytest.fixture(scope="module", autouse=True)
def programs(request: pytest.FixtureRequest) -> None:
    need: Need = request.getfixturevalue("need")
    need("native", engine_problem() is None)
    need("jpegtran", shutil.which("jpegtran") is not None)


def rewritten(data: bytes, interval: int) -> bytes | None:
    """What the engine makes of it, if anything. With an index it is the same file with an index, where there can be
    one."""
    engine = get_engine()
    assert engine is not None
    made = engine.rewrite(data, interval, index=False)
    assert engine.rewrite(data, interval) == indexed(made, data)
    return made


@given(st.data())
def test_the_bytes_are_those_of_jpegtran(choice: st.DataObject) -> None:
    """With all samplings, and sizes at which the last blocks of a row or column are not the image's."""
    sampling = choice.draw(st.sampled_from(("gray", "444", "422", "420", "440")))
    height, width = choice.draw(st.integers(1, 90)), choice.draw(st.integers(1, 120))
    options: dict[str, Any] = {"quality": choice.draw(st.sampled_from((1, 30, 75, 95, 100)))}
    if choice.draw(st.booleans()):
        options["restart_marker_blocks"] = choice.draw(st.integers(1, 9))
    options["progressive"] = sampling != "440" and choice.draw(st.booleans())
    image = noisy(height, width, choice.draw(st.integers(0, 3)))
    if choice.draw(st.integers(0, 3)) == 0:
        image[:] = image[:1, :1]
    data = save(image, sampling, **options)
    interval = choice.draw(st.integers(0, 20) | st.sampled_from((300, 65535)))
    assert rewritten(data, interval) == transform(data, interval)


@pytest.mark.slow
def test_all_kinds() -> None:
    for name, (data, _) in (good() | large()).items():
        for interval in (0, 1, 7):
            assert rewritten(data, interval) == transform(data, interval), name


@pytest.mark.slow
def test_real_images(shared_data: SharedData) -> None:
    paths = sorted((shared_data / "imagenet-600").rglob("*.JPEG"))[::25]
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert rewritten(data, 3) == transform(data, 3), path


SCRIPTS = {
    "bands": "0: 0 0 0 0; 1: 0 0 0 0; 2: 0 0 0 0; 0: 1 9 0 0; 0: 10 63 0 0; 2: 1 63 0 0; 1: 1 63 0 0;",
    "refined": "0 1 2: 0 0 0 3; 0: 1 63 0 4; 1: 1 63 0 1; 2: 1 63 0 1; 0: 1 63 4 3; 0: 1 20 3 2; 0 1 2: 0 0 3 2;"
    "0: 21 63 3 2; 0: 1 63 2 1; 0: 1 63 1 0; 0 1 2: 0 0 2 1; 1: 1 63 1 0; 2: 1 63 1 0; 0 1 2: 0 0 1 0;",
    "pairs": "0 1: 0 0 0 0; 2: 0 0 0 1; 2: 0 0 1 0; 0: 1 63 0 0; 1: 1 63 0 0; 2: 1 63 0 0;",
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("sampling", ["444", "422", "420", "440"])
def test_scans_of_every_kind(script: str, sampling: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPTS[script])
    for name in (f"{sampling} optimised", sampling, f"{sampling} narrow"):
        data = good()[name][0]
        for restart in ((), ("-restart", "5B"), ("-restart", "1")):
            command = ["jpegtran", "-scans", str(tmp_path / "script"), *restart]
            progressive = subprocess.run(command, input=data, capture_output=True, check=True).stdout
            assert b"\xff\xc2" in progressive
            for interval in (0, 3):
                assert rewritten(progressive, interval) == rewritten(data, interval) is not None


def test_progressive_files_that_lack_something_are_refused() -> None:
    data = save(noisy(61, 83), "420", progressive=True)
    assert rewritten(data, 2) is not None
    scans = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    ends = [min(at for at in range(start, len(data)) if at > start and is_marker(data, at)) for start in scans]
    for start, end in zip(scans, ends, strict=True):
        assert rewritten(data[:start] + data[end:], 2) is None  # a scan is missing
        assert rewritten(data[:start] + data[start:end] * 2 + data[end:], 2) is None  # one is there twice
        assert rewritten(data[: end - 2] + data[end:], 2) is None
        assert rewritten(data[:end] + b"\0" + data[end:], 2) is None
        assert rewritten(data[:end] + COMMENT + data[end:], 2) is None  # jpegtran moves it
    assert rewritten(data[:-2], 2) is None


def is_marker(data: bytes, at: int) -> bool:
    return data[at] == 0xFF and data[at + 1] not in (0, *range(0xD0, 0xD8))


EXIF = b"\xff\xe1\0\x10Exif\0\0II*\0\x08\0\0\0"
ADOBE = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x01"
COMMENT = b"\xff\xfe\0\x05abc"
JFXX = b"\xff\xe0\0\x0aJFXX\0\x10ab"


def variants() -> dict[str, bytes]:
    data = good()["420"][0]
    tables = segments(without(data, 0xE0))[0].stop
    bare, jfif = without(data, 0xE0), data[2 : segments(data)[0].stop]
    thumbnail = b"\xff\xe0\0\x13JFIF\0\x01\x02\x01\0\x48\0\x49\x01\x01abc"
    return {
        "no metadata": bare,
        "EXIF first": bare[:2] + EXIF + COMMENT + bare[2:],
        "EXIF second": bare[:2] + COMMENT + EXIF + bare[2:],
        "EXIF before JFIF": bare[:2] + EXIF + jfif + bare[2:],
        "EXIF behind JFIF": bare[:2] + jfif + EXIF + COMMENT + EXIF + bare[2:],
        "JFIF twice": bare[:2] + jfif + jfif + bare[2:],
        "JFIF with a thumbnail": bare[:2] + thumbnail + JFXX + bare[2:],
        "Adobe": bare[:2] + ADOBE + bare[2:],
        "Adobe and JFIF": bare[:2] + jfif + ADOBE + bare[2:],
        "metadata between tables": bare[:2] + jfif + bare[2:tables] + COMMENT + bare[tables:],
        "an end and more": data + b"more",
    }


def test_metadata_stays_as_jpegtran_leaves_it() -> None:
    for name, data in variants().items():
        found = rewritten(data, 2)
        if name in ("EXIF before JFIF", "JFIF twice"):
            assert found is None, name  # what libjpeg does then depends on more
        else:
            assert found == transform(data, 2), name


def test_what_is_refused() -> None:
    for name, data in refused_files().items():
        if name not in ("large coefficients", "progressive"):  # which are as good as others here
            assert rewritten(data, 3) is None, name


def test_intervals_that_there_are_not() -> None:
    engine = get_engine()
    assert engine is not None
    for interval in (-1, 65536, 1 << 40):
        assert engine.rewrite(good()["420"][0], interval) is None


@given(st.data())
@examples(60)
def test_damage_is_refused_or_jpegtran_makes_the_same_of_it(choice: st.DataObject) -> None:
    files = [data for data, _ in good().values()] + [save(noisy(61, 83), "420", progressive=True)] * 20
    data = bytearray(choice.draw(st.sampled_from(files)))
    for _ in range(choice.draw(st.integers(1, 3))):
        at = choice.draw(st.integers(2, len(data) - 1) | st.integers(2, min(700, len(data) - 1)))
        data[at] = choice.draw(st.integers(0, 255) | st.sampled_from((0, 255, 0xD0, 0xD9)))
    found = rewritten(bytes(data), 3)
    if found is not None:
        assert found == transform(bytes(data), 3)


@pytest.mark.slow
def test_files_are_made_seekable_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [data for name, (data, _) in (good() | large()).items() if "seekable" not in name and "rows" not in name]
    by_engine = [made(data) for data in files]
    with monkeypatch.context() as patch:
        patch.setattr(rewrite_module, "get_engine", lambda: None)
        assert [made(data) for data in files] == by_engine
    for data in by_engine:
        assert isinstance(data, str) or check_index(data) is None


def made(data: bytes) -> bytes | str:
    try:
        return make_seekable(data)
    except NotSeekableError as error:
        return error.reason


def test_a_flat_image_has_tables_of_one_code() -> None:
    data = save(np.full((40, 40, 3), 128, np.uint8), "444")
    assert rewritten(data, 5) == transform(data, 5)


@given(st.data())
@examples(40)
def test_other_coefficients_are_not_confirmed(choice: st.DataObject) -> None:
    """A file is confirmed when it is seekable and decodes to the coefficients of the one before, and to no others."""
    name = choice.draw(st.sampled_from([name for name in good() if "tiny" not in name]))
    data, engine = good()[name][0], get_engine()
    assert engine is not None
    right = engine.rewrite(data, 1)
    assert right is not None
    wrong = bytearray(right)
    at = choice.draw(st.integers(2, len(wrong) - 3))
    wrong[at] ^= 1 << choice.draw(st.integers(0, 7))
    for changed in (bytes(wrong), without_index(right), right[:-1]):
        engine.rewrite(data, 1)
        if engine.confirms(changed):
            # Metadata, or bits that fill a byte.
            np.testing.assert_array_equal(engine.decode(changed, MAX_PIXELS), good()[name][1])
    assert not engine.confirms(right)  # only after it was rewritten
    engine.rewrite(data, 1)
    assert engine.confirms(right)


def test_what_is_not_confirmed_is_left_to_jpegtran(monkeypatch: pytest.MonkeyPatch) -> None:
    data = good()["420"][0]
    monkeypatch.setattr("packstore.images.engine.native.Engine.confirms", lambda *_: False)
    made = rewrite_module.make_checked(data)
    assert not made.is_proven
    monkeypatch.undo()
    assert rewrite_module.make_checked(data) == (made.data, True)
