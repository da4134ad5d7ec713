"""Numbers too large for float64 never become infinity silently."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packstore import PackedDataset, convert, verify
from packstore.sources import open_source
from tests.internals import SourceError
from tests.makers.annotated import fill, jpeg
from tests.makers.layouts import tar

HUGE = ["9" * 5000, "-" + "9" * 400, "1e999", "-1.5E+400"]
LARGE = ["1e308", "9" * 308, "1.7976931348623157e308", "inf", "-INF"]


def values_of(root: Path, tmp_path: Path) -> list[Any]:
    convert(root, tmp_path / "x.lmdb")
    assert verify(tmp_path / "x.lmdb", against=root).problems == ()
    data = PackedDataset(tmp_path / "x.lmdb", columns=("key", "z"))
    return [value for _, value in sorted((data[n] for n in range(len(data))), key=lambda item: str(item[0]))]


def csv_set(root: Path, table: str, number: str) -> Path:
    head = "image" if table == "train.csv" else "file_name"
    text = f"{head},label,z\na.jpg,1,1\nb.jpg,2,{number}\nc.jpg,1,2.5\n"
    return fill(root, {**{f"{name}.jpg": jpeg(n) for n, name in enumerate("abc")}, table: text.encode()})


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("table", ["metadata.csv", "train.csv"])
def test_a_column_of_csv_is_text(table: str, number: str, tmp_path: Path) -> None:
    assert values_of(csv_set(tmp_path / "set", table, number), tmp_path) == ["1", number, "2.5"]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("table", ["metadata.csv", "train.csv"])
def test_numbers_that_fit_stay_numbers(table: str, number: str, tmp_path: Path) -> None:
    found = values_of(csv_set(tmp_path / "set", table, number), tmp_path)
    assert [float(value) for value in found] == [1.0, float(number), 2.5]


@pytest.mark.parametrize("number", ["1e999", "-1.5E+400", "9" * 400 + ".5"])
@pytest.mark.parametrize("table", ["metadata.jsonl", "train.jsonl"])
def test_json_is_refused_with_the_number(table: str, number: str, tmp_path: Path) -> None:
    head = "file_name" if table == "metadata.jsonl" else "image"
    rows = [f'{{"{head}": "{name}.jpg", "label": 1, "z": {{"q": [{number if name == "b" else 1}]}}}}' for name in "abc"]
    files = {**{f"{name}.jpg": jpeg(1) for name in "abc"}, table: "\n".join(rows).encode()}
    with pytest.raises(SourceError, match=rf"{table}, line 2: has the number .*too large for float64"):
        convert(fill(tmp_path / "set", files), tmp_path / "x.lmdb")


def test_json_of_webdataset(tmp_path: Path) -> None:
    values = {f"{n}.json": b'{"a": 1e999}' if n == 1 else b"{}" for n in range(3)}
    files = {f"{n}.jpg": jpeg(n) for n in range(3)} | values
    (tmp_path / "0.tar").write_bytes(tar(dict(sorted(files.items()))))
    with closing(open_source(tmp_path / "0.tar")) as source:
        entries = [*source.entries()]
        assert source.read(entries[0]).values["json"] == {}
        with pytest.raises(Exception, match=r"\.json: has the number 1e999, which is too large"):
            source.read(entries[1])
