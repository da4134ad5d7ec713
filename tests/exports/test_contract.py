"""The contract of every kind of export that packstore has. Kinds with tests of their own beside it have it there."""

from __future__ import annotations

from packstore.testing import ExportSuite
from tests.internals import EXPORTS

ELSEWHERE = ("mds", "recordio", "tfds")

for _kind in EXPORTS.built_in:
    if _kind not in ELSEWHERE:
        _name = f"Test{_kind.title().replace('_', '')}"
        globals()[_name] = type(_name, (ExportSuite,), {"kind": _kind, "__module__": __name__})
