"""``packstore verify``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.colour import bold, red
from packstore.cli.common import (
    StorePath,
    human_bytes,
    pluralize,
    progress_bar,
    shell_quote,
    suggest_packing,
)
from packstore.cli.options import Command, OptionsOf, cache_options, json_option, quiet_option
from packstore.core.errors import MissingStoreError, StoreError, printable
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.checking.verification import VerifyReport
    from packstore.stores.base import Problem

_LISTED = 50
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
    if as_json:
        click.echo(json.dumps(report_to_json(report), indent=2))
    elif not quiet or not report.ok:
        click.echo(describe_report(report, quiet))
    raise click.exceptions.Exit(0 if report.ok else 1)


def report_to_json(report: VerifyReport) -> dict[str, Any]:
    """Converts the report to JSON values: its attributes, and facts of the manifest in place of the manifest.

    These facts are ``records``, ``dataset_digest`` and ``skipped_at_packing``.
    """
    return {
        "path": str(report.path),
        "ok": report.ok,
        "quick": report.quick,
        "records": report.manifest.records,
        "dataset_digest": report.manifest.dataset_digest,
        "checks": list(report.checks),
        "checked_bytes": report.checked_bytes,
        "problem_count": report.problem_count,
        "differences": report.differences,
        "double_keys": report.double_keys,
        "writer": report.writer,
        "problems": [asdict(problem) for problem in report.problems],
        "skipped_at_packing": [asdict(skipped) for skipped in report.manifest.skipped],
    }


def describe_report(report: VerifyReport, quiet: bool = False) -> str:
    """Formats the report as text: checks, at most 50 problems, the verdict, and advice. With ``quiet``, leaves out
    checks and most advice.

    If every record differs from the source, lists five problems.
    """
    manifest = report.manifest
    lines = [] if quiet else [f"checked  {printable(check)}" for check in report.checks]
    if manifest.skipped and not quiet:
        lines.append(
            f"note     {pluralize(len(manifest.skipped), 'sample')} skipped when it was packed (packstore info)"
        )
    if report.writer is not None:
        lines.append(f"note     {report.writer} is writing to this store now; what was there before was checked")
    # A store of another dataset or with another encoding differs in every record: a few are enough.
    differing = {problem.record for problem in report.problems} - {None}
    another = (
        report.problem_count == report.differences >= manifest.records > 0
        and len(differing) == min(manifest.records, len(report.problems))  # not all problems are kept
    )
    listed = _LISTED_OF_ANOTHER if another else _LISTED
    lines += [f"problem  {describe_problem(problem)}" for problem in report.problems[:listed]]
    if report.problem_count > listed:
        lines.append(f"problem  … and {report.problem_count - listed:,} more (--json lists them)")
    path, there = printable(str(report.path)), shell_quote(report.path)
    if report.ok:
        size = human_bytes(manifest.image_bytes)
        verdict = "no damage found without reading images" if report.quick else "undamaged"
        lines.append(f"{path}: {bold(verdict)} ({pluralize(manifest.records, 'record')}, {size} of images)")
    else:
        what = "differs" if report.problem_count == report.differences else "DAMAGED"
        if report.problem_count == report.double_keys:
            what = "keys occur twice"
        lines.append(f"{path}: {red(what)}, {pluralize(report.problem_count, 'problem')}")
        if report.problem_count == report.double_keys:
            lines.append(
                f"every record is undamaged; to leave out repeated keys: packstore audit {there} --json audit.json, "
                f"then packstore select {there} --drop audit.json --drop-kinds double_key -o NEW"
            )
        elif isinstance(report.path, UrlPath):
            lines.append(
                f"to replace damaged shards from the source or another store: packstore repair {there} --from SOURCE"
            )
        elif not quiet and any(problem.lost for problem in report.problems):
            lines.append(
                f"a shard does not open: packstore salvage {there} --out REST recovers the rest; or pack it again"
            )
        elif not quiet and report.problem_count == report.differences:
            asked = "is this what it was packed from?"
            if another:
                asked = f"every record differs: is this what it was packed from (as {manifest.encoding})?"
            lines.append(f"the store itself is undamaged; {asked}")
        elif not quiet:
            lines.append(
                f"to replace damaged records from the source: packstore repair {there} --from SOURCE --out FIXED"
            )
    return "\n".join(lines)


def describe_problem(problem: Problem) -> str:
    """Formats a problem on one line: shard, record, key, and the fault. Leaves out parts that are unknown."""
    shard = f"{problem.shard}: " if problem.shard else ""
    if problem.record is None:
        return shard + printable(problem.what)
    key = f" ({printable(problem.key)})" if problem.key is not None else ""
    return f"{shard}record {problem.record}{key}: {printable(problem.what)}"
