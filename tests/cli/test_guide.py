"""``packstore guide``: the pages in a terminal's pager, and as plain text."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import packstore
from tests.internals import EXPORTS, SOURCES, format_page
from tests.makers.command import COMMAND, run

PAGES = {path.stem: path for path in (Path(packstore.__file__).parent / "guide").glob("*.md")}


def test_without_a_topic_it_lists_all_pages_with_their_summaries() -> None:
    done = run("guide")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:1].strip()] == sorted(PAGES)
    assert max(map(len, done.stdout.splitlines())) <= 80
    for path in PAGES.values():
        title, summary, *_ = path.read_text("utf-8").split("\n\n")
        assert title.startswith("# "), path
        assert " ".join(summary.split()) in " ".join(done.stdout.split()), path


@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize("topic", PAGES)
def test_a_page_is_printed_as_it_is(topic: str) -> None:
    done = run("guide", topic)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == PAGES[topic].read_text("utf-8").rstrip("\n")


@pytest.mark.slow
def test_a_terminal_gets_a_pager(tmp_path: Path) -> None:
    (tmp_path / "pager").write_text(f'#!/bin/sh\necho "paged by $0"\ncat > {tmp_path}/seen\n')
    (tmp_path / "pager").chmod(0o755)
    master, slave = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "guide", "packing"],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "PAGER": str(tmp_path / "pager"), "TERM": "xterm", "COLUMNS": "66"},
        check=False,
    )
    os.close(slave)
    os.close(master)
    assert (done.returncode, done.stderr) == (0, b"")
    page = PAGES["packing"].read_text("utf-8")
    assert (tmp_path / "seen").read_text("utf-8").rstrip() == format_page(page, 66).rstrip()


@pytest.mark.parametrize("topic", PAGES)
@pytest.mark.parametrize("columns", [60, 100])
def test_a_page_fits_into_a_terminal_and_loses_no_word(topic: str, columns: int) -> None:
    page = PAGES[topic].read_text("utf-8")
    text = format_page(page, columns)
    code = re.findall(r"^```.*?^```$", page, re.MULTILINE | re.DOTALL)
    for part in code:
        assert part in text
        text = text.replace(part, "")
    assert max(map(len, text.splitlines())) <= columns or max(map(len, text.split())) > columns - 20
    missing = set(re.findall(r"\w+", page)) - set(re.findall(r"\w+", format_page(page, columns)))
    headers = re.findall(r"^\|(.*)\|\n\|[-|]+\|$", page, re.MULTILINE)
    assert missing <= set(re.findall(r"\w+", " ".join(header.split("|")[0] for header in headers)))


def test_how_a_page_fits() -> None:
    text = "# Title\n\nOne line\nand another.\n\n- an item\n  goes on\n- a second\n\n"
    table = "| a | b |\n|---|---|\n| x\\|y | z |\n\n"
    page = text + table + "```\n  code\n```\n\nEnd.\n"
    assert format_page(page, 60).splitlines() == [
        *("# Title", "", "One line and another.", "", "- an item goes on", "- a second", "", "- x|y", "  b: z", ""),
        *("```", "  code", "```", "", "End."),
    ]


@pytest.mark.slow
def test_an_unknown_topic_is_wrong_usage_and_lists_the_pages() -> None:
    done = run("guide", "cooking")
    assert done.returncode == 2
    assert "Usage:" in done.stderr
    assert f"no page about 'cooking'; pages: {', '.join(sorted(PAGES))}" in done.stderr
    assert run("guide", "../../README").returncode == 2
    assert "no page about 'load'; did you mean loading? pages: " in run("guide", "load").stderr


def test_every_kind_of_source_has_its_row_and_its_section() -> None:
    """And what is listed is a kind; the last cell names the exports of the format, each of which is in some row."""
    page = PAGES["sources"].read_text("utf-8")
    table = page.partition("\n\n## ")[0]
    tabled = re.findall(r"^\| `(\w+)` \|", page.removeprefix(table), re.MULTILINE)  # a row is all they need
    rows = [row.split("|")[1:-1] for row in re.findall(r"^\|.*\|$", table, re.MULTILINE)[2:]]
    assert {len(row) for row in rows} == {3}, [row for row in rows if len(row) != 3]
    kinds = [name for first, *_ in rows for name in re.findall(r"`(\w+)`", first)]
    assert sorted(kinds) == sorted(SOURCES.built_in)
    assert sorted(re.findall(r"`--to (\w+)`", " ".join(row[2] for row in rows))) == sorted(EXPORTS.built_in)
    assert_sections(page, r"`(\w+)`", [name for name in SOURCES.built_in if name not in tabled])


def test_every_kind_of_export_has_its_row_and_its_section() -> None:
    page = PAGES["exporting"].read_text("utf-8")
    rows = re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)[2:]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(EXPORTS.built_in)
    assert_sections(page, r"(\w+)", EXPORTS.built_in)


def assert_sections(page: str, pattern: str, names: Sequence[str]) -> None:
    """Each of ``names`` is in one heading, and something is said below it."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    headed = [re.findall(pattern, section.partition("\n")[0]) for section in sections]
    assert sorted(name for found in headed for name in found) == sorted(names)
    for section in sections:
        assert len(section.partition("\n")[2].split()) >= 15, section
