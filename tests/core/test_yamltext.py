"""YAML of others: plain values, and nothing that runs, refers or grows."""

from __future__ import annotations

import sys

import pytest

from packstore.core.yamltext import load_yaml


def test_plain_values() -> None:
    text = b"path: ../set # where\nnames:\n  0: cat\n  1: 'a: b'\ntrain: [a, b]\nnc: 2\n"
    assert load_yaml(text) == {"path": "../set", "names": {0: "cat", 1: "a: b"}, "train": ["a", "b"], "nc": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: [1, 2", "is not YAML"),
        (b"a: !!python/object/apply:os.system ['touch ran']", "is not YAML: could not determine a constructor"),
        (b"a: &x [1]\nb: [*x, *x]", "has an alias"),
        (b"[" * 40 + b"]" * 40, "more than 32 levels"),
        (b"[" * 100_000, "more than 32 levels"),
        (b"a" * (1 << 20) + b"b", "has 1048577 bytes"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"a: \x00", "is not YAML"),
        (b"? [a]\n: b", "is not YAML"),
        (b"a: 2001-99-99", "is not YAML"),
        (b"a: " + b"9" * 5000, "is not YAML"),
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
