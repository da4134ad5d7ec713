"""``--where``: a small grammar; what it means, and what it says of mistakes."""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import CHECKSUM, KEY, Column, Manifest, Origin, Split, UsageError, parse_where

CLASSES = ("cat", "dog", "n01440764", "sea lion", "7", "in")
COLUMNS = (
    Column("image", "ragged", "uint8", type="image"),
    Column("label", "fixed", "int64", classes=CLASSES, nbytes=6 * 8, type="label"),
    Column("score", "fixed", "float32", nbytes=6 * 4, nullable=True),
    Column("score_valid", "fixed", "bool", nbytes=6),
    Column("year", "fixed", "int32", nbytes=6 * 4),
    Column("vector", "fixed", "float32", (3,), nbytes=6 * 12),
    KEY,
    CHECKSUM.__class__(**{f: getattr(CHECKSUM, f) for f in ("name", "kind", "dtype")}, nbytes=48),
)
MANIFEST = Manifest(
    "hdf5", "original", 6, COLUMNS, Origin("flat", "x"), splits=(Split("train", 0, 4), Split("my val", 4, 6))
)


class Rows:
    columns: ClassVar[dict[str, Any]] = {
        "key": np.array(["a/0.jpg", "a/1.jpg", "b/2.png", "b/[3].png", "c/4\n.png", "ü*5"], object),
        "split": np.array(["train"] * 4 + ["my val"] * 2, object),
        "label": np.arange(6),
        "score": np.array([0.1, 0.5, 0.9, 0, 0, 1], np.float32),
        "score_valid": np.array([1, 1, 1, 0, 1, 1], bool),
        "year": np.array([1999, 2000, 2001, 2002, 2003, 2004]),
    }

    def __len__(self) -> int:
        return 6

    def values(self, name: str) -> Any:
        return self.columns[name]


def chosen(text: str) -> list[int]:
    mask = parse_where(text, MANIFEST)(Rows())
    assert mask.dtype == bool
    return np.flatnonzero(mask).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label == cat", [0]),
        ("label == 'sea lion'", [3]),
        ('label in (cat, dog, "sea lion")', [0, 1, 3]),
        ("label not in (cat, dog)", [2, 3, 4, 5]),
        ("label != cat and split == train", [1, 2, 3]),
        ("label == 7", [4]),  # it is the name of a class
        ("label == 2", [2]),  # it is the number of one
        ("label == 'in'", [5]),
        ("label like 'n0*'", [2]),
        ("label like ?og", [1]),
        ('split == "my val"', [4, 5]),
        ("split in (train)", [0, 1, 2, 3]),
        ("not split == train", [4, 5]),
        ("not not split == train", [0, 1, 2, 3]),
        ("key like 'a/*'", [0, 1]),
        ("key like '*.png'", [2, 3, 4]),
        ("key not like '*.png'", [0, 1, 5]),
        ("key like 'b/[3].png'", [3]),
        ("key == a/0.jpg or key == 'ü*5'", [0, 5]),
        ("key < b", [0, 1]),
        ("key in (a/0.jpg, a/1.jpg)", [0, 1]),
        ("year >= 2002", [3, 4, 5]),
        ("year < 99999999999999999999", [0, 1, 2, 3, 4, 5]),
        ("year<2000 or year>2003", [0, 5]),
        ("year in (1999, 2004)", [0, 5]),
        ("score >= 0.5", [1, 2, 5]),
        ("score < 1e0", [0, 1, 2, 4]),
        ("score != 0.5", [0, 2, 4, 5]),  # a missing one is neither equal nor different
        ("not score == 0.5", [0, 2, 4, 5]),  # nor is its negation true
        ("not (score > 0.5)", [0, 1, 4]),
        ("not (score > 0.5 or label == cat)", [1, 4]),
        ("not (score > 0.5 and label == cat)", [0, 1, 2, 3, 4, 5]),  # false for every other label
        ("score > 0.5 or split == train", [0, 1, 2, 3, 5]),
        ("score not in (2)", [0, 1, 2, 4, 5]),
        ("score_valid == false", [3]),
        ("label == cat or label == dog and split == 'my val'", [0]),  # and binds more closely
        ("(label == cat or label == dog) and split == train", [0, 1]),
        ("  label==cat  ", [0]),
    ],
)
def test_what_it_means(text: str, expected: list[int]) -> None:
    assert chosen(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at the end: the name of a column is expected"),
        ("label", "at the end: ==, !=, <, <=, >, >=, in, not in or like is expected"),
        ("label == ", "at the end: a value is expected"),
        ("label = cat", "at character 7, '= cat': write == for equal"),
        ("label ! cat", "at character 7, '! cat': write != for different, or not"),
        ("label == catt", "at character 10, 'catt': no class 'catt'; did you mean cat?"),
        ("label == xyzzy", "no class 'xyzzy'; there are: cat, dog"),
        ("label in (cat, dgo)", "at character 16, 'dgo': no class 'dgo'; did you mean dog"),
        ("split == val", "at character 10, 'val': no split 'val'; did you mean my val?"),
        ("split in (train, test)", "at character 18, 'test': no split 'test'"),
        ("label in cat", "at character 10, 'cat': '(' is expected"),
        ("label in (cat", "at the end: ')' is expected"),
        ("(label == cat", "at the end: ')' is expected"),
        ("label == cat)", "at character 13, ')': 'and', 'or' or the end is expected"),
        ("label == cat dog", "at character 14, 'dog': 'and', 'or' or the end"),
        ("label == cat and", "at the end: the name of a column"),
        ("labels == cat", "at character 1, 'labels': no column 'labels' to compare; there are: key, split, label"),
        ("vector == 1", "no column 'vector' to compare"),
        ("image == 1", "no column 'image' to compare"),
        ("label < dog", "at character 9, 'dog': classes have no order; use == or in instead of <"),
        ("year == soon", "at character 9, 'soon': column 'year' holds numbers, and 'soon' is none"),
        ("year == '2000'", "column 'year' holds numbers"),
        ("year like 2", "column 'year' holds numbers; like is for key, split and classes"),
        ("label == 'cat", 'at character 10, "\'cat": the quote does not end'),
        pytest.param("year == " + "9" * 5000, "a number of at most 100 digits is expected", id="digits"),
        ("label not == cat", "at character 11, '==': 'in' or 'like' is expected"),
        ("and", "at character 1, 'and': the name of a column"),
        ("label == and", "at character 10, 'and': a value is expected"),
        ("(" * 101 + "label == cat" + ")" * 101, "more than 100 levels of parentheses"),
        ("not " * 300 + "label == cat", "more than 100 levels"),
        ("__import__('os').system('x')", "at character 1, '__import__': no column"),
    ],
)
def test_what_it_says_of_mistakes(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        parse_where(text, MANIFEST)
    assert "\n" not in str(caught.value)


def test_very_long_ones_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 100,000"):
        parse_where(" " * 100_001, MANIFEST)


def test_which_columns_it_looks_at() -> None:
    assert parse_where("label == cat or key like a*", MANIFEST).columns == {"label", "key"}


WORDS = [
    *("label", "split", "key", "year", "==", "!=", "<", "in", "not", "and", "or"),
    *("(", ")", ",", "cat", "1", "'a'", "like"),
]


@pytest.mark.slow
@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=30))
def test_whatever_is_written_is_understood_or_refused(text: str) -> None:
    try:
        where = parse_where(text, MANIFEST)
    except UsageError:
        return
    mask = where(Rows())
    assert mask.shape == (6,)


def test_as_python_understands_it(rng: random.Random) -> None:
    """Random conditions, against Python's own precedence."""
    for _ in range(200):
        text = "year > 2001"
        for _ in range(rng.randrange(5)):
            part = rng.choice(["year < 2003", "year == 2000", "not year > 2002", f"({text})"])
            text = f"{text} {rng.choice(['and', 'or'])} {part}"
        expected = [i for i in range(6) if eval(text, {"year": 1999 + i})]
        assert chosen(text) == expected, text
