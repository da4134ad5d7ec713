"""The server of ``packstore view``: whom it answers, and what."""

from __future__ import annotations

import io
import json
import random
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import packstore
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from packstore.stores import open_store
from tests.conftest import ROOT, Need, Stores
from tests.internals import StoreError, UsageError, draw_record, serve_page
from tests.makers.annotated import jpeg
from tests.makers.command import run
from tests.makers.datasets import write_image
from tests.makers.oriented import make_set
from tests.makers.stores import damage, files_of
from tests.makers.typed import make_typed
from tests.makers.viewing import AVAILABLE, HOST, HTML, TOKEN, Client, ask, client_of, make_hostile, make_large


@pytest.fixture(autouse=True)
def _installed(need: Need) -> None:
    need("starlette", AVAILABLE)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ["label", "mask", "deep", "boxes", "labels", "points", "caption", "info", "blob", "vector", "brain"]
    path = tmp_path_factory.mktemp("typed") / "typed.lmdb"
    make_typed(path, [*names, "weight", "right"])
    return path


@pytest.fixture
def client(stores: Stores) -> Iterator[Client]:
    with client_of(stores("files.lmdb")) as client:
        yield client


def pixels(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


# Who is answered ------------------------------------------------------------------------------------------------


def test_the_token_becomes_a_cookie_and_leaves_the_address(stores: Stores) -> None:
    with client_of(stores("files.lmdb"), token=None) as client:
        assert client.get("/").status == 403
        answer = client.get("/", token=TOKEN)
        assert (answer.status, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/").status == 200


@pytest.mark.parametrize("other", ['x={"b":1}', "x", "=", "a=b,c=d", 'q="1;2"', "x=é", "[1]=2"])
def test_cookies_of_other_applications_are_no_obstacle(stores: Stores, other: str) -> None:
    with client_of(stores("files.lmdb"), token=None) as client:
        own = client.get("/", token=TOKEN).headers["set-cookie"].split(";")[0]
        for cookies in (f"{other}; {own}", f"{own}; {other}", f"{other};{own}"):
            assert client.get("/api/store", headers={"cookie": cookies}).status == 200
        assert client.get("/api/store", headers={"cookie": f"{other}; x{own}"}).status == 403


@pytest.mark.parametrize("path", ["/", "/api/store", "/thumbnail/192/0", "/image/0/image", "/file/0", "/page.js"])
@pytest.mark.parametrize("token", [None, "", "a-toke", "a-token2", "☺"])
def test_without_the_token_nothing_is_answered(stores: Stores, path: str, token: str | None) -> None:
    with client_of(stores("files.lmdb"), token=None) as client:
        answer = client.get(path, **({} if token is None else {"token": token}))
        assert answer.status == 403
        assert "packstore view" in answer.json()["error"]


def test_a_token_in_any_other_address_does_not_count(stores: Stores) -> None:
    with client_of(stores("files.lmdb"), token=None) as client:
        assert client.get("/api/store", token=TOKEN).status == 403


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        *(
            (421, {"host": host})
            for host in ("example.org", "127.0.0.1.example.org", "10.0.0.1:8000", "", "[::1]:8000")
        ),
        *((403, {"origin": origin}) for origin in ("http://example.org", "null", "http://127.0.0.1:9999")),
        (403, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        (403, {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}),
        (200, {"origin": HOST, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}),
        (200, {"host": "localhost:1234"}),  # behind a forwarded port
    ],
)
def test_only_its_own_page_on_this_machine_is_answered(client: Client, status: int, headers: dict[str, str]) -> None:
    assert client.get("/api/store", headers=headers).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
def test_only_get_is_answered(client: Client, method: str) -> None:
    answer = client.request(method, "/api/store")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/", "/api/store", "/thumbnail/192/0", "/nowhere"])
def test_every_answer_forbids_what_is_not_the_pages_own(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"


FILES = ("../pyproject.toml", "page/../../app.py", "%2e%2e/%2e%2e/etc/passwd", "page.js/..%2fapp.py", "static//etc/x")


@pytest.mark.parametrize("path", FILES)
def test_no_other_file_is_served(client: Client, path: str) -> None:
    assert client.get(f"/{path}").status == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((f"/thumbnail/192/{record}", 404) for record in ("42", "99999999999999999")),
        *((f"/thumbnail/{path}", 400) for path in ("192/" + "9" * 4000, "192/-1", "192/1e3", "192/٣", "100000/0")),
        *((path, 404) for path in ("/image/0/nothing", "/image/0/key", "/mask/0/image", "/api/sizes?split=nothing")),
        ("/api/rows?start=0&stop=99999999999", 200),
        *((f"/api/rows?{query}", 400) for query in ("start=" + "9" * 30, "q=" + "x" * 300, "sort=secret")),
        *((f"/api/rows?{query}", 400) for query in ("split=nothing", "width=a:b", "width=nan:1", "class=1.5")),
        *((f"/api/loaded/0?{query}", 400) for query in ("seed=" + "9" * 30, "augment=Resize(100000)")),
        ("/api/loaded/0?augment=__import__('os')", 400),
    ],
)
def test_strange_questions_are_answered_in_words(client: Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status == status
    assert status == 200 or answer.json()["error"]


def test_a_page_of_rows_is_bounded(tmp_path: Path) -> None:
    make_large(tmp_path / "large", 4, 1000)
    with client_of(tmp_path / "large") as client:
        answer = ask(client, "/api/rows", start=0, stop=10**12)
        assert (answer["count"], len(answer["rows"])) == (4000, 500)


# What is shown --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["files.lmdb", "pixels.h5", "square.pth", "cifar.lmdb", "bfloats.h5", "shards.h5"])
def test_every_kind_of_store_is_shown(stores: Stores, name: str) -> None:
    path = stores(name)
    with client_of(path) as client, open_store(path) as reader:
        about = ask(client, "/api/store")
        assert about["records"] == len(reader)
        rows = ask(client, "/api/rows", start=1, stop=3)["rows"]
        assert [row["key"] for row in rows] == [reader.key(1), reader.key(2)]
        thumbnail = client.get("/thumbnail/96/1")
        assert thumbnail.status == 200
        assert max(Image.open(io.BytesIO(thumbnail.content)).size) <= 96
        shown = packstore.PackedDataset(path, split=about["splits"][0]["name"]).show(1)
        np.testing.assert_array_equal(pixels(client.get("/image/1/image").content), np.asarray(shown))
        record = ask(client, "/api/record/1")
        assert record["image"]["shown"] == list(shown.size)
        assert [check["ok"] for check in record["checksums"]] == [True, True]
        assert client.get("/file/1").content == bytes(reader.read(1))
        assert sum(kind["count"] for kind in ask(client, "/api/sizes")["kinds"]) == len(reader)
        counts = ask(client, "/api/classes")["splits"]
        assert [sum(split["counts"]) for split in counts] == [len(split) for split in reader.manifest.splits]


@pytest.mark.slow
def test_every_type_of_column_is_shown(typed: Path) -> None:
    with client_of(typed) as client, open_store(typed) as reader:
        record = ask(client, "/api/record/3")
        found = {column["name"]: column for column in record["columns"]}
        assert not {"deep_shape", "caption_valid", "checksum", "key"} & found.keys()
        assert found["label"]["value"] == 0
        assert found["caption"]["value"] is None
        assert json.loads(found["info"]["value"]) == {"id": 3, "of": ["a", None, 1.5]}
        assert found["blob"]["value"] == "00 01 02"
        assert found["boxes"]["value"] == reader.item("boxes", 3).tolist()
        assert found["brain"]["value"] == [1.5, -3]
        for name in ("mask", "deep"):
            assert client.get(f"/mask/3/{name}").status == 200
        assert client.get("/image/3/right").status == 200
        assert ask(client, "/api/mask/3/mask")["values"][:2] == [0, 1]


def test_records_are_chosen_sorted_and_found(stores: Stores) -> None:
    path = stores("files.lmdb")
    with client_of(path) as client, open_store(path) as reader:
        keys = [reader.key(i) for i in range(len(reader))]
        labels = [int(reader.value("label", i)) for i in range(len(reader))]
        sizes = [len(reader.read(i)) for i in range(len(reader))]

        def records(**parameters: Any) -> list[int]:
            return [row["record"] for row in ask(client, "/api/rows", start=0, stop=400, **parameters)["rows"]]

        everything = range(len(reader))
        assert records() == [*everything]
        assert records(desc="1") == [*everything][::-1]
        assert records(split="val") == [*range(reader.manifest.split("val").start, len(reader))]
        assert records(**{"class": "1"}) == [i for i in everything if labels[i] == 1]
        assert records(q="/BEE/00") == [i for i in everything if "/bee/00" in keys[i]]
        assert records(q="nowhere") == []
        assert records(sort="key") == sorted(everything, key=lambda i: keys[i].encode())
        assert records(sort="bytes", desc="1") == sorted(everything, key=lambda i: sizes[i])[::-1]
        assert records(bytes=f"{sizes[3]}:{sizes[3]}") == [i for i in everything if sizes[i] == sizes[3]]
        assert records(kind="png RGB") == [i for i in everything if keys[i].endswith(".png")]
        with Image.open(io.BytesIO(reader.read(5))) as image:
            width, height = image.size
        assert 5 in records(width=f"{width}:{width}", height=f"{height}:", split="train")
        chosen = records(q="ant", sort="pixels", desc="1")
        assert ask(client, f"/api/place/{chosen[4]}", q="ant", sort="pixels", desc="1")["place"] == 4
        outside = next(i for i in everything if "ant" not in keys[i])
        assert ask(client, f"/api/place/{outside}", q="ant")["place"] is None


def test_a_search_does_not_reach_from_one_key_into_the_next(tmp_path: Path) -> None:
    for name in ("ab", "cd", "bc"):
        write_image(tmp_path / "in" / f"{name}.png", 8, 8, 1)
    packstore.convert(tmp_path / "in", tmp_path / "x.lmdb")
    with client_of(tmp_path / "x.lmdb") as client:
        for text in ("ngb", "b.pngc", "gc"):
            assert ask(client, "/api/rows", stop=9, q=text)["count"] == 0, text
        assert ask(client, "/api/rows", stop=9, q="B")["count"] == 2


def test_classes_of_several_labels_are_counted_together(typed: Path, tmp_path: Path) -> None:
    made = make_typed(tmp_path / "tags.lmdb", ["tags"], 12)
    tags = [set(values["tags"].tolist()) for values in made.values]
    with client_of(made.path) as client:
        found = ask(client, "/api/classes")
        assert found["splits"][0]["counts"] == [sum(n in tag for tag in tags) for n in range(3)]
        assert found["splits"][0]["missing"] == sum(not tag for tag in tags)
        place = {n: i for i, n in enumerate(found["together"]["classes"])}
        both = found["together"]["counts"][place[0]][place[2]]
        assert both == sum({0, 2} <= tag for tag in tags)
        for n in (0, 2):
            rows = ask(client, "/api/rows", stop=99, **{"class": str(n)})["rows"]
            assert [row["record"] for row in rows] == [i for i, tag in enumerate(tags) if n in tag]
        none = ask(client, "/api/rows", stop=99, **{"class": "-1"})["rows"]
        assert [row["record"] for row in none] == [i for i, tag in enumerate(tags) if not tag]


@pytest.mark.slow
def test_the_command_of_a_selection_makes_it(stores: Stores, tmp_path: Path) -> None:
    with client_of(stores("files.lmdb")) as client:
        answer = ask(client, "/api/rows", stop=400, split="train", q="/00", **{"class": "2"})
        words = shlex.split(answer["command"])
        assert words[0] == "packstore"
        done = run(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        with open_store(tmp_path / "part.lmdb") as reader:
            assert [reader.key(i) for i in range(len(reader))] == [row["key"] for row in answer["rows"]]
        words = shlex.split(ask(client, "/api/record/4")["command"])
        assert run(*words[1:], cwd=tmp_path).returncode == 0
        with open_store(tmp_path / "one.lmdb") as reader:
            assert len(reader) == 1


# As the loader sees it ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["files.lmdb", "square.h5"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_a_record_is_bit_for_bit_as_the_loader_gives_it(stores: Stores, name: str, epoch: int) -> None:
    """Compared with a loader of the whole split, shuffled, several records a batch, by threads."""
    path = stores(name)
    dataset = packstore.PackedDataset(path, "val", columns=("image", "key"))
    augment = [RandomResizedCrop(24), RandomHorizontalFlip()]
    loader = packstore.PackedLoader(dataset, 5, True, seed=11, augment=augment, workers=2)
    loader.set_epoch(epoch)
    expected = {key: image for images, keys in loader for key, image in zip(keys, images, strict=True)}
    asked = {"augment": "RandomResizedCrop(24), RandomHorizontalFlip()", "seed": 11, "epoch": epoch}
    with client_of(path) as client:
        for row in ask(client, "/api/rows", stop=6, split="val")["rows"]:
            found = pixels(client.get(f"/loaded/{row['record']}", **asked).content)
            np.testing.assert_array_equal(found, expected[row["key"]].movedim(0, -1).numpy())
            described = ask(client, f"/api/loaded/{row['record']}", **asked)
            assert (described["shown"], described["exact"]) == ([24, 24], True)


def test_masks_and_boxes_are_moved_as_the_loader_moves_them(typed: Path) -> None:
    augment = "RandomResizedCrop((20, 30)), RandomHorizontalFlip(p=1.0)"
    with client_of(typed) as client:
        found = ask(client, "/api/loaded/1", augment=augment, seed=5)
        dataset = packstore.PackedDataset(typed, columns=("image", "boxes", "labels", "mask"))
        loader = packstore.PackedLoader(
            dataset, 8, seed=5, augment=[RandomResizedCrop((20, 30)), RandomHorizontalFlip(p=1.0)]
        )
        _, boxes, labels, masks = next(iter(loader))
        values = {column["name"]: column.get("value") for column in found["columns"]}
        assert values["boxes"] == boxes[1].tolist()
        assert values["labels"] == labels[1].tolist()
        shown = Image.open(io.BytesIO(client.get("/loaded/1/mask", augment=augment, seed=5).content))
        assert shown.size == (30, 20)
        covered = np.asarray(shown.convert("RGBA"))[..., 3] > 0
        np.testing.assert_array_equal(covered, masks[1].numpy() != 0)


def test_its_python_gives_the_same(stores: Stores) -> None:
    asked = {"augment": "RandomResizedCrop(16)", "seed": 3, "epoch": 2}
    with client_of(stores("files.lmdb")) as client:
        code = ask(client, "/api/loaded/30", **asked)["python"]
        expected = pixels(client.get("/loaded/30", **asked).content)
        names: dict[str, Any] = {}
        exec(code, names)
        batch = names["batch"]
        image = batch if isinstance(batch, torch.Tensor) else batch[0]
        np.testing.assert_array_equal(image[0].movedim(0, -1).numpy(), expected)
        plain = ask(client, "/api/record/30")["python"]
        exec(plain, names)
        shown = np.asarray(names["picture"])
        np.testing.assert_array_equal(shown, pixels(client.get("/image/30/image").content))


def test_all_crops_of_a_recipe_with_views_are_shown(stores: Stores) -> None:
    asked = {"augment": "dino", "seed": 3, "epoch": 2}
    with client_of(stores("files.lmdb")) as client:
        shown = pixels(client.get("/loaded/30", **asked).content)
        names: dict[str, Any] = {}
        exec(ask(client, "/api/loaded/30", **asked)["python"], names)
    views = names["batch"]
    assert list(views) == ["global1", "global2", "local"]
    assert shown.shape == (224 + 224 + 96, 8 * 96, 3)
    for top, name in ((0, "global1"), (224, "global2")):
        np.testing.assert_array_equal(shown[top : top + 224, :224], views[name][0, 0].movedim(0, -1).numpy())
    for number, crop in enumerate(views["local"][0]):
        part = shown[448:, 96 * number : 96 * (number + 1)]
        np.testing.assert_array_equal(part, crop.movedim(0, -1).numpy())


@pytest.mark.parametrize("augment", ["RandomZoomOut(7), RandomHorizontalFlip()", "RandomIoUCrop(), Resize(30)"])
def test_images_that_differ_in_size_are_shown(typed: Path, augment: str) -> None:
    with client_of(typed) as client:
        shown = pixels(client.get("/loaded/3", augment=augment, seed=1).content)
        names: dict[str, Any] = {}
        exec(ask(client, "/api/loaded/3", augment=augment, seed=1)["python"], names)
        np.testing.assert_array_equal(names["batch"][0][0].movedim(0, -1).numpy(), shown)


@pytest.mark.parametrize("augment", ["", "CenterCrop(20)"])
def test_its_python_asks_for_the_columns_shown(typed: Path, augment: str) -> None:
    """Also of a record without a caption and a weight."""
    with client_of(typed) as client:
        shown = [column["name"] for column in ask(client, "/api/record/3")["columns"]]
        names: dict[str, Any] = {}
        exec(ask(client, "/api/record/3")["python"], names)
        assert names["dataset"].columns == ("image", *shown)
        assert len(names["item"]) == 1 + len(shown)
        exec(ask(client, "/api/loaded/3", augment=augment)["python"], names)
        moved = [name for name in shown if not augment or name != "info"]
        assert names["dataset"].columns == ("image", *moved)
        assert len(names["batch"]) == 1 + len(moved)
        assert len(names["batch"][0]) == 1


def test_masks_boxes_and_points_are_drawn_over_thumbnails_if_asked_for(typed: Path) -> None:
    with client_of(typed) as client, open_store(typed) as reader:
        plain = pixels(client.get("/thumbnail/192/1").content)
        drawn = pixels(client.get("/thumbnail/192/1", drawn="1").content)
        np.testing.assert_array_equal(drawn, draw_record(plain, reader, 1, False, names=False))
        assert (drawn != plain).any()
        np.testing.assert_array_equal(pixels(client.get("/thumbnail/192/1").content), plain)
        named = pixels(client.get("/thumbnail/384/1", drawn="1").content)
        np.testing.assert_array_equal(named, draw_record(plain, reader, 1, False))
        assert (named != drawn).any()


def test_histograms_say_how_many_are_of_each_split(stores: Stores) -> None:
    with client_of(stores("files.lmdb")) as client, open_store(stores("files.lmdb")) as reader:
        for chart in ask(client, "/api/sizes")["histograms"].values():
            assert {name: sum(counts) for name, counts in chart["splits"].items()} == {
                split.name: len(split) for split in reader.manifest.splits
            }
            assert np.sum([*chart["splits"].values()], 0).tolist() == chart["counts"]
        only = ask(client, "/api/sizes", split="val")["histograms"]["bytes"]
        assert only["splits"] == {"val": only["counts"]}


# What is damaged or hostile -------------------------------------------------------------------------------------


def test_a_damaged_record_is_marked_and_ends_nothing(stores: Stores, tmp_path: Path) -> None:
    packstore.convert(stores("files.lmdb"), tmp_path / "x.h5")
    damage(tmp_path / "x.h5", [3], [], 3)
    with client_of(tmp_path / "x.h5") as client:
        answer = client.get("/thumbnail/96/3")
        assert answer.status == 422
        assert "record 3" in answer.json()["error"]
        assert client.get("/thumbnail/96/3").status == 422  # and again, out of the cache
        record = ask(client, "/api/record/3")
        assert record["checksums"][0]["ok"] is False
        assert record["marks"] == ["damaged"]
        assert client.get("/thumbnail/96/4").status == 200
        rows = ask(client, "/api/rows", stop=9, mark="damaged")["rows"]
        assert [(row["record"], row["marks"]) for row in rows] == [(3, ["damaged"])]


@pytest.mark.slow
def test_a_lost_shard_is_marked_and_ends_nothing(stores: Stores, tmp_path: Path) -> None:
    packstore.convert(stores("cifar.lmdb"), tmp_path / "x", format="lmdb", shard_size=50_000)
    shard = sorted(tmp_path.glob("x/shard-*"))[1]
    (shard / "data.mdb").write_bytes(b"nothing")
    with client_of(tmp_path / "x") as client:
        rows = ask(client, "/api/rows", stop=400)["rows"]
        lost = [row["record"] for row in rows if "error" in row]
        assert lost
        assert len(lost) < len(rows)
        assert client.get(f"/thumbnail/96/{lost[0]}").status == 422
        assert ask(client, f"/api/record/{lost[0]}")["shard"] == shard.name
        assert ask(client, "/api/classes")["splits"][0]["unreadable"] > 0
        ask(client, "/api/sizes")
        ask(client, "/api/rows", stop=400, sort="key")
        ask(client, "/api/rows", stop=400, q="a", **{"class": "1"})


def test_html_in_a_store_is_text(tmp_path: Path) -> None:
    make_hostile(tmp_path / "x.lmdb")
    with client_of(tmp_path / "x.lmdb") as client:
        for path in ("store", "rows?stop=3", "record/0", "record/1", "record/2", "classes", "sizes"):
            assert client.get(f"/api/{path}").headers["content-type"] == "application/json"
        row = ask(client, "/api/rows", stop=3)["rows"][1]
        assert "\x1b" not in row["key"]
        saved = client.get("/file/2")
        assert saved.content == HTML.encode()
        assert saved.headers["content-type"] == "application/octet-stream"
        assert saved.headers["content-disposition"] == 'attachment; filename="record-2.bin"'
        for path in ("/image/2/image", "/thumbnail/96/2"):
            assert client.get(path).status == 422
        assert "error" in ask(client, "/api/record/2")["image"]


def test_an_image_is_shown_as_the_loader_gives_it_and_not_as_a_browser_would(tmp_path: Path) -> None:
    """Of transparent pixels, colour profiles, CMYK and EXIF orientation, browsers think otherwise."""
    root = tmp_path / "in"
    root.mkdir()
    colours = np.random.default_rng(0).integers(0, 255, (16, 24, 4), np.uint8)
    Image.fromarray(colours).save(root / "alpha.png")
    photo = Image.fromarray(colours[..., :3])
    photo.save(root / "profile.jpg", icc_profile=b"p" * 200)
    exif = Image.Exif()
    exif[274] = 6
    photo.save(root / "turned.jpg", exif=exif)
    photo.convert("CMYK").save(root / "cmyk.jpg")
    photo.save(root / "plain.jpg")
    frames = [photo.quantize(), photo.rotate(180).quantize()]
    frames[0].save(root / "moving.gif", save_all=True, append_images=frames[1:])
    for turned in (False, True):
        path = tmp_path / f"{turned}.lmdb"
        packstore.convert(root, path, exif_transpose=turned, alpha="drop", frames="first")
        dataset = packstore.PackedDataset(path)
        with client_of(path) as client:
            for record, key in enumerate(dataset.keys):
                answer = client.get(f"/image/{record}/image")
                kind = "jpeg" if key == "plain.jpg" else "png"
                assert answer.headers["content-type"] == f"image/{kind}", key
                assert Image.open(io.BytesIO(answer.content)).format == kind.upper()
                np.testing.assert_array_equal(pixels(answer.content), np.asarray(dataset.show(record)), key)
                size = Image.open(io.BytesIO(client.get(f"/thumbnail/96/{record}").content)).size
                assert size == dataset.show(record).size
                suffix = client.get(f"/file/{record}").headers["content-disposition"].rpartition(".")[2]
                assert suffix == f'{key.rpartition(".")[2]}"'


@pytest.mark.slow
def test_a_thumbnail_has_the_side_that_was_asked_for(tmp_path: Path) -> None:
    for name, height, width in (("a", 300, 1000), ("b", 1000, 300), ("c", 640, 640)):
        write_image(tmp_path / "in" / f"{name}.jpg", height, width, 1)
    packstore.convert(tmp_path / "in", tmp_path / "x.lmdb")
    with client_of(tmp_path / "x.lmdb") as client:
        for record, expected in enumerate([(192, 58), (58, 192), (192, 192)]):
            found = Image.open(io.BytesIO(client.get(f"/thumbnail/192/{record}").content)).size
            assert np.abs(np.subtract(found, expected)).max() <= 1, (found, expected)


# Findings -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_verify_found_is_marked(stores: Stores, tmp_path: Path) -> None:
    packstore.convert(stores("files.lmdb"), tmp_path / "x.h5")
    damage(tmp_path / "x.h5", [3, 8], [], 3)
    report = run("verify", tmp_path / "x.h5", "--json")
    (tmp_path / "report.json").write_text(report.stdout)
    with client_of(tmp_path / "x.h5", verified=tmp_path / "report.json") as client:
        assert ask(client, "/api/store")["marks"] == {"damaged": 2}
        assert [row["record"] for row in ask(client, "/api/rows", stop=9, mark="damaged")["rows"]] == [3, 8]
        assert "checksum" in ask(client, "/api/record/8")["findings"][0]["text"]


def test_what_audit_found_is_marked(tmp_path: Path) -> None:
    for split, name, seed in (("train", "ant", 1), ("train", "bee", 2), ("val", "ant", 1), ("val", "bee", 3)):
        write_image(tmp_path / "in" / split / name / f"{seed}.png", 8, 8, seed)
    packstore.convert(tmp_path / "in", tmp_path / "x.lmdb")
    report = packstore.audit(tmp_path / "x.lmdb")
    (tmp_path / "audit.json").write_text(report.to_json())
    with client_of(tmp_path / "x.lmdb", audit=tmp_path / "audit.json") as client:
        about = ask(client, "/api/store")
        assert about["marks"] == {"leakage": 2}
        rows = ask(client, "/api/rows", stop=9, mark="leakage")["rows"]
        assert [(row["record"], row["marks"]) for row in rows] == [(0, ["leakage"]), (2, ["leakage"])]
        said = {"text": "same bytes in the splits train, val", "also": [0]}
        assert ask(client, "/api/record/2")["findings"] == [said]


@pytest.mark.slow
def test_findings_about_no_record_are_kept_by_kind(stores: Stores, tmp_path: Path) -> None:
    lacking = [{"kind": "class_split", "what": f"val lacks class {n}", "records": []} for n in range(1200)]
    others = [{"kind": HTML, "what": HTML, "records": []}, {"kind": "flat", "what": "of one colour", "records": [4]}]
    (tmp_path / "audit.json").write_text(json.dumps({"findings": [*lacking, *lacking, *others]}))
    with client_of(stores("files.lmdb"), audit=tmp_path / "audit.json") as client:
        about = ask(client, "/api/store")
        assert [*about["notes"]] == ["class_split", HTML]
        assert about["notes"]["class_split"]["count"] == 1200
        assert about["notes"]["class_split"]["texts"] == [f"val lacks class {n}" for n in range(1000)]
        assert about["kinds"]["class_split"] == "a class that a split lacks"
        assert about["marks"] == {"flat": 1}


def test_all_records_are_verified_on_demand(stores: Stores, tmp_path: Path) -> None:
    packstore.convert(stores("files.lmdb"), tmp_path / "x.h5")
    damage(tmp_path / "x.h5", [3, 8], ["label"], 5)
    with client_of(tmp_path / "x.h5") as client:
        assert ask(client, "/api/store")["marks"] == {}
        assert ask(client, "/api/verify")["problems"] == 3
        assert ask(client, "/api/store")["marks"] == {"damaged": 3}
        rows = ask(client, "/api/rows", stop=9, mark="damaged")["rows"]
        assert [row["record"] for row in rows] == [3, 5, 8]
    with client_of(stores("files.lmdb")) as client:
        assert ask(client, "/api/verify")["problems"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "not JSON"),
        ("[]", "no list of problems"),
        ('{"problems": 3}', "no list of problems"),
        ('{"problems": [], "dataset_digest": "ff"}', "another store"),
    ],
)
def test_another_report_is_refused(stores: Stores, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError, match=message), client_of(stores("files.lmdb"), verified=tmp_path / "report.json"):
        pass


def test_strange_findings_are_passed_over(stores: Stores, tmp_path: Path) -> None:
    entries = [{"record": 1}, {"record": -4}, {"record": "x"}, {"record": 10**9}, 3, {"record": True}, {"what": "all"}]
    (tmp_path / "report.json").write_text(json.dumps({"problems": entries}))
    with client_of(stores("files.lmdb"), verified=tmp_path / "report.json") as client:
        assert ask(client, "/api/store")["marks"] == {"damaged": 1}


# Many records ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_million_records(tmp_path: Path) -> None:
    make_large(tmp_path / "large", 100, 10_000)
    with client_of(tmp_path / "large") as client:
        assert ask(client, "/api/store")["records"] == 1_000_000
        sizes = ask(client, "/api/sizes")
        assert (sizes["seen"], sizes["total"]) == (20_000, 1_000_000)
        assert ask(client, "/api/rows", start=777_777, stop=777_779)["rows"][0]["key"] == "photo-07777.jpg"
        chosen = ask(client, "/api/rows", start=5, stop=6, split="val", desc="1", **{"class": "3"})
        assert (chosen["count"], chosen["rows"][0]["record"]) == (1000, 999_943)
        assert ask(client, "/api/rows", start=0, stop=1, q="photo-0123")["count"] == 1000
        assert [sum(s["counts"]) for s in ask(client, "/api/classes")["splits"]] == [990_000, 10_000]


def test_thumbnails_are_kept_in_bounded_memory(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import images

    monkeypatch.setattr(images, "_CACHE_BYTES", 20_000)
    with open_store(stores("files.lmdb")) as reader:
        made = images.BrowserImages(reader)
        for record in range(len(reader)):
            made.get_thumbnail(record, 96)
            assert 0 < made.cached_bytes <= 20_000
        assert made.get_thumbnail(len(reader) - 1, 96) is made.get_thumbnail(len(reader) - 1, 96)


@pytest.mark.parametrize("name", ["view-grid", "view-record", "view-overview"])
def test_the_guide_has_small_pictures(name: str) -> None:
    """``tools/screenshots.py`` takes them."""
    picture = ROOT / ".github" / f"{name}.png"
    assert picture.stat().st_size < 60_000
    assert f"{name}.png" in (ROOT / "packstore" / "guide" / "seeing.md").read_text("utf-8")


@pytest.mark.slow
def test_a_store_that_is_none_is_refused(tmp_path: Path) -> None:
    done = run("view", tmp_path / "nothing.lmdb", "--no-browser")
    assert done.returncode == 2
    assert "does not exist" in done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".pth"])
@pytest.mark.parametrize("case", range(20))
def test_whatever_is_damaged_every_question_is_answered(
    suffix: str, case: int, tmp_path: Path, rng: random.Random
) -> None:
    """Bytes anywhere in the files of a store are changed; one that opens all the same is shown."""
    names = ["label", "mask", "raw", "boxes", "labels", "points", "caption", "info", "blob", "vector", "weight"]
    path = tmp_path / f"x{suffix}"
    make_typed(path, names)
    for file in files_of(path):
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice((1, 20, 300))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data)
    try:
        with open_store(path) as reader:
            count = len(reader)
    except StoreError:
        return
    questions = ["/api/store", "/api/classes", "/api/sizes", "/api/verify", "/api/rows?stop=9&sort=key&q=0"]
    questions += [f"/api/rows?stop=99&{more}" for more in ("", "class=1", "sort=bytes&desc=1", "width=1:50")]
    for record in range(count):
        questions += [f"/api/record/{record}", f"/thumbnail/96/{record}", f"/image/{record}/image", f"/file/{record}"]
        questions += [f"/{what}/{record}/{name}" for what in ("mask", "api/mask") for name in ("mask", "raw")]
        questions += [f"/api/loaded/{record}?augment=RandomResizedCrop(9)", f"/api/place/{record}?sort=key"]
    with client_of(path) as client:
        for question in questions:
            while (answer := client.get(question)).status == 202:
                pass
            assert answer.status in (200, 422), (question, answer.content[:300])


def test_what_is_missing_is_named(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(UsageError, match=r"needs starlette: pip install 'packstore\[view\]'"):
        serve_page(stores("files.lmdb"), pytest.fail, pytest.fail, browser=False)


def test_a_port_that_is_taken_is_named(stores: Stores) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            serve_page(stores("files.lmdb"), pytest.fail, pytest.fail, port=port, browser=False)


# Frames and crowds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_sizes_are_those_of_the_image_that_is_shown(orientation: int, kind: str, upright: bool, tmp_path: Path) -> None:
    source = make_set(tmp_path / "set", "coco", kind, orientation, "stored")
    packstore.convert(source, tmp_path / "a.lmdb", exif_transpose=upright, annotation_frame="stored")
    with client_of(tmp_path / "a.lmdb") as client:
        width, height = ask(client, "/api/record/0")["image"]["shown"]
        for name, side in (("width", width), ("height", height)):
            limits = {name: f"{side}:{side}"}
            assert ask(client, "/api/rows", stop=9, **limits)["count"] == 1
        assert width != height


@pytest.mark.parametrize("labels", ["labels", "kinds"])
def test_crowds_have_a_word(labels: str, tmp_path: Path) -> None:
    fields = {
        "image": "image",
        "boxes": "boxes",
        labels: packstore.Labels(["car"], of="boxes"),
        "iscrowd": packstore.Labels(of="boxes"),
    }
    with packstore.Writer(tmp_path / "a.lmdb", fields) as writer:
        for flags in ([0, 1, 0], [], [1]):
            boxes = [[1, 2, 5, 6]] * len(flags)
            writer.add(**{"image": jpeg(0), "boxes": boxes, labels: [0] * len(flags), "iscrowd": flags})
    with client_of(tmp_path / "a.lmdb") as client, open_store(tmp_path / "a.lmdb") as reader:
        for record in range(len(reader)):
            columns = {each["name"]: each for each in ask(client, f"/api/record/{record}")["columns"]}
            flags = reader.item("iscrowd", record).tolist()
            names = [text for shape in columns["boxes"]["shapes"] for text in shape["names"]]
            assert [text.endswith(" (crowd)") for text in names] == [flag == 1 for flag in flags]
