"""``tools/operation_sheets.py`` shows every operation and recipe."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packstore import augment
from tests.conftest import ROOT, Stores

SCRIPT = ROOT / "tools" / "operation_sheets.py"


@pytest.mark.slow
def test_sheets_of_all_operations_and_recipes(stores: Stores, tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    script["draw_operation_sheets"](stores("files.lmdb"), tmp_path, "train", [0, 3], 2)
    pitch = script["SIDE"] + script["GAP"]
    for name, rows in (
        ("operations", script["OPERATIONS"]),
        ("sampling", script["SAMPLING"]),
        ("recipes", augment.RECIPES),
    ):
        with Image.open(tmp_path / f"{name}.png") as picture:
            pixels = np.asarray(picture)
        assert pixels.shape[0] == len(rows) * pitch
        plain, *others = (pixels[:, script["TEXT"] + n * pitch :][:, : script["SIDE"]] for n in range(3))
        for row in range(len(rows)):
            part = slice(row * pitch, row * pitch + script["SIDE"])
            assert plain[part].std() > 10
            shown = any((other[part] != plain[part]).any() for other in others)
            assert shown or "p=0.5" in repr(rows[row]), rows[row]


def test_an_operation_that_is_not_shown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(SCRIPT))
    script["check_all_are_shown"]()
    monkeypatch.setitem(script["check_all_are_shown"].__globals__, "OPERATIONS", script["OPERATIONS"][1:-1])
    with pytest.raises(AssertionError, match="no sheet shows Compose"):
        script["check_all_are_shown"]()
