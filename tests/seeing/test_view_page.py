"""The page of ``packstore view`` in a real browser: what one sees, does with keys and mouse, and what is read out."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import packstore
from packstore.augment import RandomResizedCrop
from packstore.stores import open_store
from tests.conftest import Need, Stores
from tests.makers.images import encode
from tests.makers.stores import damage
from tests.makers.typed import make_typed
from tests.makers.viewing import AVAILABLE, HTML, make_hostile, make_large, served

pytestmark = pytest.mark.slow

AXE = Path(__file__).parent / "axe" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
REFUSED = re.compile(r"Failed to load resource: the server responded with a status of 4(00|22) ")
"""What the browser says of an image that is damaged, and of a question that is none."""


@pytest.fixture(scope="module")
def browser(need: Need) -> Iterator[Any]:
    need("starlette", AVAILABLE)
    need("chromium", bool(CHROMIUM) and find_spec("playwright") is not None)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without its sandbox, since containers forbid what that needs; it opens these tests' own pages only.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, hash: str = "", **options: Any) -> Iterator[Any]:
    """The page at ``address``; fails if it says anything in the console, or asks for anything from elsewhere."""
    context = browser.new_context(**{"viewport": {"width": 1000, "height": 700}, **options})
    context.set_default_timeout(120_000)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address + hash)
    page.wait_for_selector(".tile[data-record], .record, .charts .panel, .empty")
    try:
        yield page
    finally:
        context.close()
    base = address.partition("?")[0]
    assert [url for url in asked if not url.startswith(base)] == []
    assert [text for text in said if not REFUSED.match(text)] == []


def keys_of(page: Any) -> list[str]:
    """The keys of the tiles, in their order on the screen."""
    found = page.eval_on_selector_all(
        ".tile:not([hidden])", "all => all.map(t => [Number(t.id.slice(6)), t.querySelector('.key').textContent])"
    )
    return [key for _, key in sorted(found)]


def wait(page: Any, expression: str) -> None:
    """Until an expression in the page is true. (The page forbids what Playwright's own function does.)"""
    until = time.monotonic() + 120
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < until, expression
        page.wait_for_timeout(20)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large"
    make_large(path, 100, 10_000)
    return path


@pytest.mark.parametrize("width", [390, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_million_records_are_scrolled_through(browser: Any, large: Path, width: int) -> None:
    """In narrow columns the list is higher than an element may be in any browser."""
    with served(large) as address, opened(browser, address, viewport={"width": width, "height": 700}) as page:
        page.wait_for_selector("#place-0 img")
        columns = int(page.get_attribute("#grid", "aria-colcount"))
        assert int(page.get_attribute("#grid", "aria-rowcount")) == -(-1_000_000 // columns)
        height = page.evaluate("document.getElementById('spacer').offsetHeight")
        assert height < 17_000_000
        page.keyboard.press("End")
        page.wait_for_selector("#place-999999.current img")
        assert keys_of(page)[-1] == "photo-09999.jpg"
        assert page.evaluate("grid.scrollTop + grid.clientHeight >= grid.scrollHeight - 1")
        page.evaluate("grid.scrollTop = grid.scrollHeight / 2")
        wait(
            page, "document.querySelector('.row[aria-rowindex] .tile img') && !document.getElementById('place-999999')"
        )
        places = page.eval_on_selector_all(".tile[data-record]", "all => all.map(t => Number(t.id.slice(6)))")
        assert 300_000 < min(places) < max(places) < 700_000
        # A small movement moves the list by as much, however long it is.
        where = "document.querySelector('.row').getBoundingClientRect().top"
        before = page.evaluate(f"[document.querySelector('.row').getAttribute('aria-rowindex'), {where}]")
        page.mouse.move(width / 2, 500)
        page.mouse.wheel(0, 40)
        find = f"document.querySelector('.row[aria-rowindex=\"{before[0]}\"]').getBoundingClientRect().top"
        wait(page, f"Math.abs({find} - {before[1] - 40}) < 2")
        assert page.evaluate("document.querySelectorAll('.tile').length") < 200
        page.keyboard.press("Home")
        page.wait_for_selector("#place-0.current img")
        assert page.evaluate("grid.scrollTop") == 0
        page.keyboard.press("ArrowRight")
        page.keyboard.press("PageDown")
        current = page.evaluate("Number(document.querySelector('.tile.current').id.slice(6))")
        assert current > columns
        wait(page, f"location.hash.includes('at={current}')")
        # A list that comes to rest after a tile was chosen does not take that tile out of the address.
        page.mouse.wheel(0, 40)
        wait(page, "grid.scrollTop > 0")
        page.keyboard.press("End")
        page.wait_for_timeout(300)
        assert "at=999999" in page.evaluate("location.hash")


def test_records_are_filtered_searched_and_every_state_has_a_link(browser: Any, stores: Stores) -> None:
    path = stores("files.lmdb")
    with served(path) as address, open_store(path) as reader:
        keys = [reader.key(i) for i in range(len(reader))]
        with opened(browser, address) as page:
            page.select_option("#split", "val")
            page.fill("#class", "bee")
            page.press("#class", "Enter")
            page.wait_for_selector("#status:has-text('7 of 42 records')")
            assert keys_of(page) == [key for key in keys if key.startswith("val/bee/")]
            page.keyboard.press("Escape")
            page.keyboard.press("/")
            page.keyboard.type("/00")
            page.wait_for_selector("#status:has-text('7 of 42 records')")
            page.keyboard.type("3")
            page.wait_for_selector("#status:has-text('1 of 42 records')")
            assert keys_of(page) == [key for key in keys if key.startswith("val/bee/003")]
            page.keyboard.press("Enter")
            link = page.evaluate("location.hash.slice(1)")
            page.go_back()
            page.wait_for_selector("#status:has-text('7 of 42 records')")
        with opened(browser, address, f"#{link}") as page:
            page.wait_for_selector("#status:has-text('1 of 42 records')")
            values = [page.input_value(f"#{name}") for name in ("split", "class", "q")]
            assert values == ["val", "bee", "/003"]
        with opened(browser, address, "#sort=key&desc=1") as page:
            page.wait_for_selector("#status:has-text('42 records')")
            assert keys_of(page)[0] == max(keys)
            page.fill("#q", "nowhere")
            page.wait_for_selector(".empty:has-text('No records match')")


def test_a_record_is_opened_with_its_layers(browser: Any, tmp_path: Path) -> None:
    made = make_typed(tmp_path / "typed.lmdb", ["label", "mask", "boxes", "labels", "points", "caption"], size=(48, 64))
    with served(made.path) as address, opened(browser, address) as page:
        page.wait_for_selector("#place-0")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_selector(".canvas img.main")
        assert "record=1" in page.evaluate("location.hash")
        names = page.eval_on_selector_all(".layers button", "all => all.map(b => b.textContent)")
        count = len(made.values[1]["boxes"])
        assert names == ["mask", f"boxes ({count})", f"points ({count})"]
        drawn = page.eval_on_selector_all(
            "[data-layer=boxes] rect.box",
            "all => all.map(r => ['x', 'y', 'width', 'height'].map(n => Number(r.getAttribute(n))))",
        )
        boxes = made.values[1]["boxes"]
        np.testing.assert_allclose(drawn, np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1), rtol=1e-5)
        wait(page, "document.querySelector('[data-layer=mask]').naturalWidth === 64")
        page.keyboard.press("2")
        assert not page.is_visible("[data-layer=boxes]")
        assert page.is_visible("[data-layer=mask]")
        assert "off=boxes" in page.evaluate("location.hash")
        page.click(".layers button:has-text('boxes')")
        assert page.is_visible("[data-layer=boxes]")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(".bar .title:has-text('Record 2')")
        page.wait_for_selector("text=a small picture, number 2 ☺")
        page.keyboard.press("Escape")
        page.wait_for_selector("#place-2.current")
        assert page.evaluate("document.activeElement.id") == "grid"


def test_a_record_is_shown_as_the_loader_sees_it(browser: Any, stores: Stores) -> None:
    """The pixels on the screen's image, and not only those that the server sends."""
    path = stores("files.lmdb")
    loader = packstore.PackedLoader(
        packstore.PackedDataset(path, "train"), 21, seed=4, augment=[RandomResizedCrop(20)], workers=1
    )
    loader.set_epoch(2)
    expected = next(iter(loader))[0][5].movedim(0, -1).numpy()
    with served(path) as address, opened(browser, address, "#record=5") as page:
        page.wait_for_selector(".canvas img.main")
        page.keyboard.press("a")
        page.fill("input[name=augment]", "RandomResizedCrop(20)")
        page.press("input[name=augment]", "Enter")
        page.wait_for_selector("text=20 × 20 pixels")
        for name, value in (("seed", "4"), ("epoch", "2")):
            page.fill(f"input[name={name}]", value)
            page.press(f"input[name={name}]", "Enter")
            wait(page, f"document.querySelector('.canvas img.main').src.includes('{name}={value}')")
        wait(page, "document.querySelector('.canvas img.main').naturalWidth === 20")
        shown = page.evaluate("""() => {
            const image = document.querySelector('.canvas img.main');
            const canvas = Object.assign(document.createElement('canvas'), {width: 20, height: 20});
            canvas.getContext('2d').drawImage(image, 0, 0);
            return [...canvas.getContext('2d').getImageData(0, 0, 20, 20).data];
        }""")
        np.testing.assert_array_equal(np.array(shown, np.uint8).reshape(20, 20, 4)[..., :3], expected)
        assert "loader.set_epoch(2)" in page.inner_text(".code >> nth=0")
        page.fill("input[name=augment]", "open('/etc/passwd')")
        page.press("input[name=augment]", "Enter")
        page.wait_for_selector("[role=alert]:has-text('augmentations should be calls of')")


def test_what_is_damaged_is_marked_and_ends_nothing(browser: Any, stores: Stores, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    packstore.convert(stores("files.lmdb"), path)
    damage(path, [3], [], 3)
    found = [{"what": "another byte", "record": 8}, {"what": "a shard is missing"}]
    (tmp_path / "report.json").write_text(json.dumps({"problems": found}))
    with served(path, verified=tmp_path / "report.json") as address, opened(browser, address, "#view=overview") as page:
        page.wait_for_selector("text=a shard is missing")
        page.click("button:has-text('damaged: 1')")
        page.wait_for_selector("#status:has-text('1 of 42 records')")
        page.wait_for_selector("#place-0 .badge")
        page.select_option("#mark", "")
        page.wait_for_selector("#place-3.damaged .broken")
        page.wait_for_selector("#place-4 img")
        page.click("#place-3")
        page.wait_for_selector(".panel.bad:has-text('record 3')")
        assert "damaged:" in page.inner_text(".wrong >> nth=0")
        page.click("#after")
        page.wait_for_selector(".bar .title:has-text('Record 4')")
        page.wait_for_selector(".canvas img.main")
        page.click("text=← Grid")
        page.select_option("#mark", "damaged")
        page.wait_for_selector("#status:has-text('2 of 42 records')")
        page.click("#to-overview")
        page.click("text=Compare all records")
        page.wait_for_selector("text=1 problem")
        page.wait_for_selector("button:has-text('damaged: 2')")


def test_html_in_a_store_is_text_on_the_page(browser: Any, tmp_path: Path) -> None:
    make_hostile(tmp_path / "x.lmdb")
    with served(tmp_path / "x.lmdb") as address, opened(browser, address) as page:
        page.wait_for_selector("#place-0 .name:has-text('<script>')")
        assert HTML in page.inner_text("#split")
        page.click("#class")
        assert HTML in page.inner_text("#class-list")
        page.keyboard.press("Escape")
        for hash in (
            "#record=0",
            "#record=1",
            "#record=2",
            "#view=overview",
            "#q=<b>x</b>&kind=<i>",
            f"#class=9&split={HTML}",
        ):
            page.goto(address.partition("?")[0] + hash)
            page.wait_for_timeout(150)
            assert page.title().endswith("x.lmdb")
            assert page.query_selector_all("main script, main img[src=x], main b, main i") == []
        page.goto(address.partition("?")[0] + "#view=overview")
        page.wait_for_selector(".classes th:has-text('<script>')")


def test_html_in_findings_and_json_is_text_on_the_page(browser: Any, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "image": "image",
        "info": "json",
        "mark": packstore.Boxes(),
        "names": packstore.Labels([HTML], of="mark"),
    }
    with packstore.Writer(tmp_path / "x.lmdb", fields) as writer:
        for number in range(3):
            boxes, names = np.array([[1, 1, 8, 8]], np.float32), np.array([0])
            info = {HTML: [{HTML: [HTML, HTML]}]}
            writer.add(image=png(number), key=str(number), info=info, mark=boxes, names=names)
    found = [{"kind": HTML, "what": HTML, "records": [0, 1]}, {"kind": HTML, "what": HTML, "records": []}]
    (tmp_path / "audit.json").write_text(json.dumps({"findings": found}))
    with served(tmp_path / "x.lmdb", audit=tmp_path / "audit.json") as address, opened(browser, address) as page:
        for hash, text in (
            ("#view=overview", "Findings"),
            ("#record=0", "also record 1"),
            (f"#record=0&beside=1&loader=1&augment={HTML}", "augmentations should be"),
        ):
            page.goto(address.partition("?")[0] + hash)
            page.wait_for_selector(f"main >> text={text} >> nth=0")
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            page.wait_for_timeout(100)
            assert HTML in page.inner_text("main")
            assert page.title().endswith("x.lmdb")
            assert page.query_selector_all("main script, main img[src=x]") == []


def png(seed: int, size: tuple[int, int] = (10, 10)) -> bytes:
    return encode(Image.new("RGB", size, (seed * 40 % 256, 90, 90)), "PNG")


def test_a_menu_of_a_thousand_classes_is_searched(browser: Any, tmp_path: Path) -> None:
    names = [f"Kind {n:04}" for n in range(1000)]
    with packstore.Writer(tmp_path / "x.lmdb", {"image": "image", "label": packstore.Label(names)}) as writer:
        for number in (0, 123, 129, 129):
            writer.add(image=png(number), label=number)
    with served(tmp_path / "x.lmdb") as address, opened(browser, address) as page:
        page.click("#class")
        options = "all => all.map(o => o.textContent)"
        listed = page.eval_on_selector_all("#class-list li", options)
        assert listed[:2] == ["all", "Kind 0000"]
        assert len(listed) == 101
        assert listed[-1] == "902 more: type a part of the name"
        page.keyboard.type("kind 012")
        assert page.eval_on_selector_all("#class-list li", options) == names[120:130]
        page.keyboard.press("ArrowDown")
        marked = page.get_attribute("#class", "aria-activedescendant")
        assert page.inner_text(f"#{marked}") == "Kind 0121"
        page.keyboard.type("9")
        page.keyboard.press("Enter")
        page.wait_for_selector("#status:has-text('2 of 4 records')")
        assert page.input_value("#class") == "Kind 0129"
        assert not page.is_visible("#class-list")
        page.fill("#class", "nothing")
        assert page.eval_on_selector_all("#class-list li", options) == ["no name has this in it"]
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        assert page.input_value("#class") == "Kind 0129"
        page.fill("#class", "0123")
        page.click("#class-list li")
        page.wait_for_selector("#status:has-text('1 of 4 records')")
        page.fill("#class", "")
        page.keyboard.press("Enter")
        page.wait_for_selector("#status:text-is('4 records')")


def test_findings_fold_by_kind(browser: Any, stores: Stores, tmp_path: Path) -> None:
    """960 lines leave the charts where they are."""
    lacking = [{"kind": "class_split", "what": f"val lacks class {n}", "records": []} for n in range(960)]
    few = [{"kind": "imbalance", "what": "ant has 40, bee 1", "records": []}]
    (tmp_path / "audit.json").write_text(json.dumps({"findings": [*lacking, *few]}))
    with (
        served(stores("files.lmdb"), audit=tmp_path / "audit.json") as address,
        opened(browser, address, "#view=overview") as page,
    ):
        page.wait_for_selector(".histogram >> nth=0")
        assert page.is_visible("text=ant has 40, bee 1")
        assert not page.is_visible("text=val lacks class 0")
        assert page.evaluate("document.querySelector('.histogram').getBoundingClientRect().top < innerHeight")
        page.click("summary:has-text('class_split: 960')")
        assert page.is_visible("text=val lacks class 0")
        assert page.eval_on_selector_all(".kinds li", "all => all.length") == 961
        assert page.evaluate("document.querySelector('.histogram').getBoundingClientRect().top < innerHeight")


def test_a_record_that_a_finding_names_is_shown_beside_it(browser: Any, stores: Stores, tmp_path: Path) -> None:
    found = [{"kind": "duplicate", "what": "same bytes 2 times", "records": [5, 8]}]
    (tmp_path / "audit.json").write_text(json.dumps({"findings": found}))
    images = ".two .canvas img.main"
    with (
        served(stores("files.lmdb"), audit=tmp_path / "audit.json") as address,
        opened(browser, address, "#record=5") as page,
    ):
        assert page.inner_text(".panel.bad p") == "same bytes 2 times: also record 8"
        page.click(".panel.bad a:has-text('8')")
        page.wait_for_selector(".bar .title:has-text('Record 5 beside record 8')")
        page.wait_for_selector(f"{images} >> nth=1")
        addresses = page.eval_on_selector_all(images, "all => all.map(i => i.getAttribute('src').split('?')[0])")
        assert addresses == ["/image/5/image", "/image/8/image"]
        for width in (1000, 390):
            page.set_viewport_size({"width": width, "height": 700})
            wait(page, f"[...document.querySelectorAll('{images}')].every(i => i.naturalWidth && i.clientWidth)")
            boxes = page.eval_on_selector_all(images, "all => all.map(i => i.getBoundingClientRect().toJSON())")
            assert boxes[0]["right"] <= boxes[1]["left"] < boxes[1]["right"] <= width
        page.keyboard.press("Escape")
        page.wait_for_selector(".record:not(.two) .canvas img.main")
        assert "record=5" in page.evaluate("location.hash")
        page.go_back()
        page.click(".two h2 a:has-text('Record 8')")
        page.wait_for_selector(".bar .title:has-text('Record 8')")
        page.wait_for_selector(".record:not(.two) .panel.bad a:has-text('5')")


@pytest.mark.parametrize("window", [(390, 700), (900, 700), (1600, 900)])
@pytest.mark.parametrize("size", [(32, 32), (300, 900), (2000, 400)])
def test_an_image_fills_the_window_and_fits_in_it(
    browser: Any, tmp_path: Path, window: tuple[int, int], size: tuple[int, int]
) -> None:
    long = {f"key {n}": [{"x": n, "y": [n] * 30}] * 20 for n in range(10)}
    with packstore.Writer(tmp_path / "x.lmdb", {"image": "image", "info": "json"}) as writer:
        writer.add(image=png(1, size), info=long)
    with (
        served(tmp_path / "x.lmdb") as address,
        opened(browser, address, "#record=0", viewport={"width": window[0], "height": window[1]}) as page,
    ):
        page.wait_for_selector(".canvas img.main")
        wait(page, "document.querySelector('.canvas img.main').naturalWidth")
        stage, canvas = (page.locator(name).bounding_box() for name in (".stage", ".canvas"))
        assert canvas["y"] + canvas["height"] <= window[1]
        assert canvas["x"] + canvas["width"] <= window[0]
        assert canvas["width"] / canvas["height"] == pytest.approx(size[0] / size[1], rel=0.02)
        assert max(canvas["width"] / stage["width"], canvas["height"] / stage["height"]) > 0.99
        assert stage["width"] * stage["height"] > 0.25 * window[0] * window[1] or window[0] < 760
        if window[0] >= 760:
            assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_json_folds_and_keeps_its_numbers(browser: Any, tmp_path: Path) -> None:
    info = {"id": 2**60 + 1, "box": [1, 2.5], "objects": [{"polygon": [*range(100)], "name": "a [ \n {"}], "none": {}}
    with packstore.Writer(tmp_path / "x.lmdb", {"image": "image", "info": "json"}) as writer:
        writer.add(image=png(1), info=info)
    with served(tmp_path / "x.lmdb") as address, opened(browser, address, "#record=0") as page:
        page.wait_for_selector(".json")
        text = page.inner_text(".json")
        assert f'"id": {2**60 + 1},' in text
        assert '"box": [1, 2.5],' in text
        assert '"none": {}' in text
        assert '"objects": [ … ] 1' in text
        assert "polygon" not in text
        page.click(".json summary:has-text('objects')")
        page.click(".json .inner summary:has-text('{ … }')")
        page.wait_for_selector(".json :text('a [ \\\\n {')")
        page.click(".json summary:has-text('polygon')")
        page.wait_for_selector(".json div:text-is('99')")


def test_masks_and_boxes_are_in_the_grid_by_a_switch(browser: Any, stores: Stores, tmp_path: Path) -> None:
    made = make_typed(tmp_path / "typed.lmdb", ["label", "mask", "boxes", "labels"], size=(48, 64))
    drawn = "[...document.querySelectorAll('.tile img')].every(i => i.src.includes('drawn=1') && i.naturalWidth)"
    with served(made.path) as address, opened(browser, address) as page:
        page.wait_for_selector("#place-0 img")
        assert page.inner_text("#drawn") == "Boxes and masks"
        assert page.evaluate("!document.querySelector('#place-0 img').src.includes('drawn')")
        page.click("#drawn")
        wait(page, f"document.querySelector('#place-1 img') && {drawn}")
        assert "drawn=1" in page.evaluate("location.hash")
        page.keyboard.press("Escape")
        page.keyboard.press("b")
        wait(
            page,
            "document.querySelector('#place-0 img') && !document.querySelector('#place-0 img').src.includes('drawn')",
        )
        assert page.get_attribute("#drawn", "aria-pressed") == "false"
        page.goto(f"{address.partition('?')[0]}#drawn=1")
        wait(page, f"document.querySelector('#place-1 img') && {drawn}")
    with served(stores("files.lmdb")) as address, opened(browser, address) as page:
        page.wait_for_selector("#place-0 img")
        assert not page.is_visible("#drawn")


def test_a_failed_augmentation_shows_its_error(browser: Any, stores: Stores) -> None:
    """And no image, which would look as if it were augmented."""
    with served(stores("files.lmdb")) as address, opened(browser, address, "#record=5&loader=1") as page:
        page.wait_for_selector(".canvas img.main")
        page.fill("input[name=augment]", "RandomCrop(900)")
        page.press("input[name=augment]", "Enter")
        page.wait_for_selector(".loader [role=alert]:has-text('smaller than the crop of 900x900')")
        assert page.get_attribute("input[name=augment]", "aria-invalid") == "true"
        assert "The loader gives no image" in page.inner_text(".stage")
        assert page.query_selector(".canvas") is None
        page.fill("input[name=augment]", "CenterCrop(20)")
        page.press("input[name=augment]", "Enter")
        page.wait_for_selector(".canvas img.main")
        assert page.query_selector(".record [role=alert]") is None


def test_records_and_places_count_alike(browser: Any, stores: Stores) -> None:
    with served(stores("files.lmdb")) as address:
        with opened(browser, address, "#record=9") as page:
            page.wait_for_selector("#place:text-is('of 0 to 41')")
            assert page.inner_text(".bar .title") == "Record 9 of 0 to 41"
        with opened(browser, address, "#record=41&split=val") as page:
            page.wait_for_selector("#place:text-is('place 20 of 0 to 20 chosen')")
            assert page.inner_text(".bar .title") == "Record 41 place 20 of 0 to 20 chosen"
            assert page.is_disabled("#after")
            assert not page.is_disabled("#before")
            page.goto(f"{address.partition('?')[0]}#record=0&split=val")
            page.wait_for_selector("#place:text-is('not among the chosen records')")


def test_bars_show_splits(browser: Any, stores: Stores) -> None:
    path = stores("files.lmdb")
    with open_store(path) as reader:
        splits = {split.name: len(split) for split in reader.manifest.splits}
    names = [*splits]
    with served(path) as address:
        with opened(browser, address, "#view=overview") as page:
            page.wait_for_selector(".stack .fill")
            page.wait_for_selector(".legend > span")
            assert page.eval_on_selector_all(".legend > span", "all => all.map(s => s.textContent)") == names
            shown = page.eval_on_selector_all(
                ".stack", "all => all.map(s => [...s.children].map(f => [f.title, f.getBoundingClientRect().width]))"
            )
            for parts in shown:
                counts = [int(title.split(": ")[1]) for title, _ in parts]
                assert [title.split(": ")[0] for title, _ in parts] == names
                assert parts[0][1] * counts[1] == pytest.approx(parts[1][1] * counts[0], rel=0.05)
            colors = page.eval_on_selector_all(
                ".stack >> nth=0 >> .fill", "all => all.map(f => getComputedStyle(f).backgroundColor)"
            )
            assert len(set(colors)) == len(names)
            assert {*page.eval_on_selector_all(".histogram rect", "all => all.map(r => getComputedStyle(r).fill)")} == {
                *colors
            }
        with opened(browser, address, "#view=overview&split=val") as page:
            page.wait_for_selector(".stack .fill")
            assert page.eval_on_selector_all(".stack >> nth=0 >> .fill", "all => all.length") == 1


@pytest.mark.parametrize("width", [390, 1600])
def test_names_of_boxes_are_whole_and_of_readable_size(browser: Any, tmp_path: Path, width: int) -> None:
    """Wherever the box is and however large the image."""
    names = ["a traffic light", "a name that is far longer than any image in a narrow window is wide " * 3]
    fields: dict[str, Any] = {
        "image": "image",
        "boxes": packstore.Boxes(),
        "labels": packstore.Labels(names, of="boxes"),
    }
    corners = [[0, 0, 90, 90], [1900, 0, 2000, 90], [1900, 1100, 2000, 1199], [0, 1190, 90, 1199], [0, 0, 2000, 1200]]
    with packstore.Writer(tmp_path / "x.lmdb", fields) as writer:
        writer.add(image=png(3, (2000, 1200)), boxes=np.array(corners, np.float32), labels=np.array([0, 0, 0, 0, 1]))
    with (
        served(tmp_path / "x.lmdb") as address,
        opened(browser, address, "#record=0", viewport={"width": width, "height": 800}) as page,
    ):
        page.wait_for_selector("[data-layer=boxes] text >> nth=4")
        canvas = page.locator(".canvas").bounding_box()
        grounds, texts = (
            page.eval_on_selector_all(
                f"[data-layer=boxes] {name}", "all => all.map(e => e.getBoundingClientRect().toJSON())"
            )
            for name in ("rect.label", "text")
        )
        assert len(texts) == len(grounds) == 5
        for ground, text in zip(grounds, texts, strict=True):
            assert canvas["x"] - 1 <= ground["left"] <= text["left"]
            assert text["right"] <= ground["right"] + 1 <= canvas["x"] + canvas["width"] + 2
            assert canvas["y"] - 1 <= ground["top"]
            assert ground["bottom"] <= canvas["y"] + canvas["height"] + 1
            assert 12 <= text["height"] <= 18
        assert page.text_content("[data-layer=boxes] text >> nth=4").endswith("…") or width > 390


def test_sizes_are_brushed(browser: Any, stores: Stores) -> None:
    path = stores("files.lmdb")
    with open_store(path) as reader:
        sizes = [len(reader.read(i)) for i in range(len(reader))]
    with served(path) as address, opened(browser, address, "#view=overview") as page:
        chart = page.wait_for_selector(".panel:has(h2:text-is('Size, bytes')) .histogram")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 40, steps=4)
        page.mouse.up()
        low, high = map(float, re.search(r"bytes=(\d+)%3A(\d+)", page.evaluate("location.hash")).groups())  # type: ignore[union-attr]
        expected = sum(low <= size <= high for size in sizes)
        assert 0 < expected < len(sizes)
        page.click(".panel:has(h2:text-is('Size, bytes')) button:has-text('Show')")
        page.wait_for_selector(f"#status:has-text('{expected} of 42 records')")
        page.click("#chips button")
        page.wait_for_selector("#status:text-is('42 records')")


def test_light_and_dark(browser: Any, stores: Stores) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with served(stores("files.lmdb")) as address:
        with opened(browser, address, color_scheme="dark") as page:
            dark = page.evaluate(colour)
            page.keyboard.press("d")
            light = page.evaluate(colour)
            page.reload()
            wait(page, f"{colour} === '{light}'")
        with opened(browser, address, color_scheme="light") as page:
            assert page.evaluate(colour) == light != dark


def test_a_store_at_a_url_is_fetched_as_it_is_seen(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that came damaged is shown as such, and the others are there."""
    from tests.internals import UrlPath, location, upload_store

    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    make_large(tmp_path / "large", 20, 500)
    url = location(f"{(tmp_path / 'bucket').as_uri()}/large")
    assert isinstance(url, UrlPath)
    upload_store(tmp_path / "large", url)
    with open_store(url) as reader:
        assert reader.manifest.shards is not None
        digests = {shard.digest for shard in reader.manifest.shards}
    assert len(digests) == 1, "all shards are one object in the cache"
    (shard, *_) = sorted((tmp_path / "bucket" / "large" / "shards").iterdir())
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with served(url) as address, opened(browser, address) as page:
        page.wait_for_selector("#place-0 .broken:has-text('damaged')")
        assert "came damaged" in page.get_attribute("#place-0", "title")
        assert page.inner_text("#place-0 .key") == "its shard cannot be read"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.goto(f"{address.partition('?')[0]}#record=600")
        page.wait_for_selector(".canvas img.main")
        assert str(url) in page.inner_text("#record-view")
        page.keyboard.press("g")
        page.keyboard.press("End")
        page.wait_for_selector("#place-9999 img")
        wait(page, "document.querySelector('#place-9999 .key').textContent.startsWith('photo-')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_a_screen_reader(browser: Any, tmp_path: Path, theme: str) -> None:
    """By the rules of axe-core, in windows of three widths."""
    made = make_typed(tmp_path / "typed.lmdb", ["label", "mask", "boxes", "labels", "caption", "info"], size=(48, 64))
    problems = []
    found = [{"kind": "class_empty", "what": f"class {n} has no record", "records": []} for n in (1, 2)]
    (tmp_path / "audit.json").write_text(json.dumps({"findings": [*found, {"kind": "duplicate", "records": [1, 2]}]}))
    with (
        served(made.path, audit=tmp_path / "audit.json") as address,
        opened(browser, address, color_scheme=theme) as page,
    ):
        page.evaluate(AXE.read_text("utf-8"))
        for width in (1280, 900, 390):
            page.set_viewport_size({"width": width, "height": 800})
            for hash, ready in (
                ("#", "#place-0 img"),
                ("#record=1&loader=1", ".loader input"),
                ("#record=1&beside=2", ".two .canvas img.main"),
                ("#view=overview", ".classes"),
            ):
                page.goto(address.partition("?")[0] + hash)
                page.wait_for_selector(ready)
                if hash == "#":
                    page.click("#class")
                found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                for each in found["violations"]:
                    problems.append((width, hash, each["id"], [node["html"][:150] for node in each["nodes"]][:3]))
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, hash)
    assert problems == [], json.dumps(problems, indent=1)


def test_the_command_prints_an_address_and_ends_when_it_is_told(stores: Stores) -> None:
    """Needs no browser: the address is asked as any program asks."""
    import signal
    import subprocess
    import sys
    import urllib.error
    import urllib.request

    if not AVAILABLE:
        pytest.skip("starlette is not available here")
    command = [sys.executable, "-m", "packstore", "view", str(stores("files.lmdb")), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=120) as answer:
            assert b"packstore view" in answer.read()
        base = address.partition("?")[0]
        with opener.open(f"{base}thumbnail/96/0", timeout=120) as answer:
            assert Image.open(io.BytesIO(answer.read())).width <= 96
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(base, timeout=120)
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=120)
        assert said == "packstore: interrupted\n"
        assert server.returncode == 130
    finally:
        server.kill()
        server.wait()
