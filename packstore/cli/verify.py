"""``packstore verify``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import StorePath, progress_bar, shell_quote, suggest_packing
from packstore.cli.options import Command, OptionsOf, cache_options, json_option, quiet_option
from packstore.cli.rows import Rows, bold, human_bytes, if_any, pluralize, red
from packstore.core.errors import MissingStoreError, StoreError, printable

if TYPE_CHECKING:
    from packstore.checking.reports import VerifyReport
    from packstore.stores.base import Problem

_LISTED_OF_ANOTHER = 5


@click.command(cls=Command, short_help="Prove that a store is undamaged and complete.")
@click.argument("path", type=StorePath())
@OptionsOf("packstore.checking.options:VerifyOptions", {"against": StorePath()})
@json_option
@quiet_option("No progress bar; print only problems.")
@cache_options
def verify(path: Path, as_json: bool, quiet: bool, **options: Any) -> None:
    """Check the store at PATH: structure, manifest, digests, and the checksum of every record.

    Lists each damaged record with its number, key and shard. --quick reads no images, so its time does not
    depend on their size: it finds truncated, missing and misplaced data, and damaged labels and keys, but no
    changed bytes in images. At a URL, --quick compares the objects' sizes with the manifest and reads no shards.
    Exits with 0 if the store is undamaged, 1 if it is not, 2 if there is no store.

    \b
    Examples:
      packstore verify imagenet.lmdb
      packstore verify imagenet.lmdb --quick
      packstore verify imagenet.lmdb --decode --against imagenet/
      packstore verify imagenet.h5 --against imagenet.lmdb
      packstore verify s3://bucket/imagenet.lmdb --quick
      packstore verify imagenet.lmdb --json | jq .ok
    """
    from packstore.checking.verification import verify as run
    from packstore.objects import RemoteError
    from packstore.stores import format_of

    of_source = ("labels", "source_kind", "image_key", "label_key", "layout", "ignore", "splits", "columns")
    further = ("pair", "sidecar", "masks", "annotation_frame")
    if options["against"] is None and any(options[name] not in (None, ()) for name in (*of_source, *further)):
        raise click.UsageError("--labels, --source and the like describe the source of --against; add --against SOURCE")
    try:
        with suggest_packing(path), progress_bar(quiet or as_json) as progress:
            report = run(path, **options, progress=progress)
    except StoreError as error:
        far = isinstance(error, RemoteError)
        if not as_json and not far and path.exists() and format_of(path) is not None:
            raise StoreError(f"{error}; packstore salvage may recover records") from error
        if not as_json or isinstance(error, MissingStoreError):
            raise
        # A store that does not open is damaged; with --json that is reported as JSON too.
        click.echo(json.dumps({"path": str(path), "ok": False, "problem_count": 1, "problems": [{"what": str(error)}]}))
        raise click.exceptions.Exit(1) from None
    if as_json or not quiet or not report.ok:
        report_rows(report, quiet).echo(as_json)
    raise click.exceptions.Exit(0 if report.ok else 1)


def report_rows(report: VerifyReport, quiet: bool = False) -> Rows:
    """Makes the rows of a check: checks, at most 50 problems, the verdict, and advice. With ``quiet``, leaves out
    checks and most advice.

    If every record differs from the source, lists five problems.
    """
    manifest, rows, count = report.manifest, Rows(8), report.problem_count
    rows.values |= {"path": str(report.path), "ok": report.ok, "quick": report.quick, "records": manifest.records}
    rows.values |= {"dataset_digest": manifest.dataset_digest, "checks": report.checks}
    rows.values |= {"checked_bytes": report.checked_bytes, "problem_count": count, "differences": report.differences}
    rows.values |= {"double_keys": report.double_keys, "writer": report.writer}
    rows.values["problems"] = [asdict(problem) for problem in report.problems]
    rows.values["skipped_at_packing"] = [asdict(skipped) for skipped in manifest.skipped]
    if not quiet:
        rows.add("checked", *map(printable, report.checks))
        rows.add("note", *if_any(len(manifest.skipped), "sample", " skipped when it was packed (packstore info)"))
    if report.writer is not None:
        rows.add("note", f"{report.writer} is writing to this store now; what was there before was checked")
    # A store of another dataset or with another encoding differs in every record: a few are enough.
    differing = {problem.record for problem in report.problems} - {None}
    another = (
        count == report.differences >= manifest.records > 0
        and len(differing) == min(manifest.records, len(report.problems))  # not all problems are kept
    )
    listed = [format_problem(problem) for problem in report.problems]
    rows.add_some("problem", listed, count, _LISTED_OF_ANOTHER if another else 50)
    path = printable(str(report.path))
    if report.ok:
        size = human_bytes(manifest.image_bytes)
        verdict = "no damage found without reading images" if report.quick else "undamaged"
        rows.add_lines(f"{path}: {bold(verdict)} ({pluralize(manifest.records, 'record')}, {size} of images)")
        return rows
    what = "differs" if count == report.differences else "DAMAGED"
    what = "keys occur twice" if count == report.double_keys else what
    rows.add_lines(f"{path}: {red(what)}, {pluralize(count, 'problem')}", *_advise(report, another, quiet))
    return rows


def _advise(report: VerifyReport, another: bool, quiet: bool) -> list[str]:
    """Returns the advice for a store with problems. ``another``: every record differs from the source."""
    from packstore.stores.places import place_of

    there, count = shell_quote(report.path), report.problem_count
    if count == report.double_keys:
        command = f"packstore audit {there} --json audit.json, then packstore select {there} --drop audit.json"
        return [
            f"every record is undamaged; to leave out repeated keys: {command} --drop-kinds double_key -o NEW",
        ]
    if place_of(report.path).remote:
        return [f"to replace damaged shards from the source or another store: packstore repair {there} --from SOURCE"]
    if quiet:
        return []
    if any(problem.lost for problem in report.problems):
        return [f"a shard does not open: packstore salvage {there} --out REST recovers the rest; or pack it again"]
    if count == report.differences:
        source = f"every record differs: is this what it was packed from (as {report.manifest.encoding})?"
        asked = source if another else "is this what it was packed from?"
        return [f"the store itself is undamaged; {asked}"]
    return [f"to replace damaged records from the source: packstore repair {there} --from SOURCE --out FIXED"]


def format_problem(problem: Problem) -> str:
    """Formats a problem on one line: shard, record, key, and the fault. Leaves out parts that are unknown."""
    shard = f"{problem.shard}: " if problem.shard else ""
    if problem.record is None:
        return shard + printable(problem.what)
    key = f" ({printable(problem.key)})" if problem.key is not None else ""
    return f"{shard}record {problem.record}{key}: {printable(problem.what)}"
