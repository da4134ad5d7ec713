"""The contract of every kind of export that packstore has. Kinds with tests of their own beside it have it there."""

from __future__ import annotations

from pathlib import Path

from packstore.testing import ExportSuite
from tests.internals import EXPORTS

ELSEWHERE = ("mds", "recordio", "tfds")

for _kind in EXPORTS.built_in:
    if _kind not in ELSEWHERE:
        _name = f"Test{_kind.title().replace('_', '')}"
        globals()[_name] = type(_name, (ExportSuite,), {"kind": _kind, "__module__": __name__})


def test_other_kinds_have_a_suite_of_their_own() -> None:
    texts = [file.read_text("utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    for kind in ELSEWHERE:
        assert any(f'ExportSuite):\n    kind = "{kind}"\n' in text for text in texts), kind
