"""YAML of others: plain values, and nothing that runs, refers or grows."""

from __future__ import annotations

import sys

import pytest

from tests.internals import is_yaml_bool, is_yaml_null, load_yaml, parse_yaml_int

WORDS = (
    *("no", "Yes", "on", "OFF", "y", "true", "null", "Null", "~", "007", "010", "0x1F", "1_000", "1e3", "1.50", ".inf"),
    *(".nan", "12:30", "190:20:30", "2020-01-02", "2001-99-99", "-0", "+1", "=", "<<", "9" * 5000),
)
"""Texts that YAML 1.1 or 1.2 reads as other types."""


def test_plain_values() -> None:
    text = b"path: ../set # where\nnames:\n  0: cat\n  '1': 'a: b'\ntrain: [a, b]\nnc: 2\ntest:\nval: ''\n"
    names = {"0": "cat", "1": "a: b"}
    assert load_yaml(text) == {
        "path": "../set",
        "names": names,
        "train": ["a", "b"],
        "nc": "2",
        "test": None,
        "val": "",
    }


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "form", ["a: {}", "a: '{}'", 'a: "{}"', "a: &x {}", "a: !!str {}", "a: {} # or not", "a:\n  {}"]
)
def test_scalars_are_texts_as_written(word: str, form: str) -> None:
    assert load_yaml(form.format(word).encode()) == {"a": word}


@pytest.mark.parametrize("word", WORDS)
def test_keys_and_items_are_texts_as_written(word: str) -> None:
    assert load_yaml(f"{word[:99]}: [a, {word}]\nb:\n- {word}\n- [{{c: {word}}}]".encode()) == {
        word[:99]: ["a", word],
        "b": [word, [{"c": word}]],
    }


def test_whole_numbers_and_words_for_nothing_true_and_false() -> None:
    assert [parse_yaml_int(each) for each in ("3", "007", "-1", "3.0", "1_0", "", "\u0663", "9" * 19, None, ["3"])] == [
        *(3, 7),
        *[None] * 8,
    ]
    assert [is_yaml_null(each) for each in (None, "~", "null", "NULL", "", "nil", [])] == [True] * 4 + [False] * 3
    assert [is_yaml_bool(each, True) for each in ("true", "Yes", "ON", "false", "1", None, [])] == [True] * 3 + [
        False
    ] * 4
    assert [is_yaml_bool(each, False) for each in ("false", "No", "OFF", "true", "0", None)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: [1, 2", "is not YAML"),
        (b"a: !!python/object/apply:os.system ['touch ran']", "has the tag 'tag:yaml.org,2002:python/object"),
        (b"a: !own b", "has the tag '!own'"),
        (b"a: 1\nb: 2\na: 3", "has the key 'a' twice, again on line 3"),
        (b"a: {0: b, '0': c}", "has the key '0' twice"),
        (b"a: &x [1]\nb: [*x, *x]", "has an alias"),
        (b"[" * 40 + b"]" * 40, "more than 32 levels"),
        (b"[" * 100_000, "more than 32 levels"),
        (b"a" * (1 << 20) + b"b", "has 1048577 bytes"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"a: \x00", "is not YAML"),
        (b"? [a]\n: b", "has a key that is no text, on line 1"),
    ],
)
def test_what_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        load_yaml(text)
    assert str(caught.value).isprintable()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"packstore\[yaml\]"):
        load_yaml(b"a: 1")
