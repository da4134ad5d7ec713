"""``packstore verify``, ``audit``, ``repair`` and ``salvage``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import KINDS, LocalPath, StorePath, progress_bar, shell_quote, suggest_packing
from packstore.cli.options import Command, OptionsOf, Output, cache_options, output_options, quiet_option
from packstore.cli.rows import Rows, bold, human_bytes, if_any, pluralize, red
from packstore.core.errors import MissingStoreError, StoreError, join_first, printable

if TYPE_CHECKING:
    from packstore.checking.audit import AuditReport, Finding
    from packstore.checking.reports import RepairReport, SalvageReport, VerifyReport
    from packstore.stores import Problem

_LISTED = 5
_KEYS = 3


@click.command(cls=Command, short_help="Prove that a store is undamaged and complete.")
@click.argument("path", type=StorePath())
@OptionsOf("packstore.checking:VerifyOptions", {"against": StorePath()})
@output_options(quiet="No progress bar; print only problems.")
@cache_options
def verify(path: Path, output: Output, **options: Any) -> None:
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
        with suggest_packing(path), output.progress_bar() as progress:
            report = run(path, **options, progress=progress)
    except StoreError as error:
        far, empty = isinstance(error, RemoteError), path.is_file() and not path.stat().st_size
        if not output.as_json and not far and not empty and path.exists() and format_of(path) is not None:
            raise StoreError(f"{error}; packstore salvage may recover records") from error
        if not output.as_json or isinstance(error, MissingStoreError):
            raise
        # A store that does not open is damaged; with --json that is reported as JSON too.
        click.echo(json.dumps({"path": str(path), "ok": False, "problem_count": 1, "problems": [{"what": str(error)}]}))
        raise click.exceptions.Exit(1) from None
    output.show(verify_rows(report, output.quiet), needed=not report.ok)
    raise click.exceptions.Exit(0 if report.ok else 1)


def verify_rows(report: VerifyReport, quiet: bool = False) -> Rows:
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
    rows.add_some("problem", listed, count, _LISTED if another else 50)
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
    """Returns the advice for a store with problems."""
    from packstore.stores.places import place_of

    there, count = shell_quote(report.path), report.problem_count
    if count == report.double_keys:
        command = f"packstore audit {there} --json audit.json, then packstore select {there} --drop audit.json"
        return [f"every record is undamaged; to leave out repeated keys: {command} --drop-kinds double_key -o NEW"]
    if place_of(report.path).remote:
        return [f"to replace damaged shards from the source or another store: packstore repair {there} --from SOURCE"]
    if quiet:
        return []
    if any(problem.lost for problem in report.problems):
        return [f"a shard does not open: packstore salvage {there} --out REST recovers the rest; or pack it again"]
    if count == report.differences:
        source = f"every record differs: is this what it was packed from (as {report.manifest.encoding})?"
        # ``another``: every record differs from the source.
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


@click.command(cls=Command, short_help="Find leaks between splits, conflicting labels, odd images, wrong boxes.")
@click.argument("store", type=StorePath())
@OptionsOf("packstore.checking:AuditOptions")
@click.option("--fail-on", type=KINDS, default=(), metavar="KINDS", help="Exit with 1 on leakage,conflict,… or any.")
@click.option(
    "--json", "json_file", type=LocalPath(), metavar="FILE", help="Write the report as JSON, too; - prints it."
)
@quiet_option("No progress bar; print only the findings of --fail-on.")
@cache_options
def audit(store: Path, fail_on: tuple[str, ...], json_file: Path | None, quiet: bool, **options: Any) -> None:
    """Find mistakes in STORE that spoil training: the same image in two splits or under two labels, classes
    that are empty or in one split only, wrong boxes.

    Reads checksums and labels, which takes seconds. With --pixels it also decodes every image, and finds
    images that are nearly equal, flat, tiny, truncated or not upright, and masks of another size.
    packstore guide seeing lists all kinds of findings.
    Exits with 1 if there is a finding of the kinds in --fail-on, otherwise with 0.

    \b
    Examples:
      packstore audit imagenet.lmdb
      packstore audit imagenet.lmdb --pixels --json audit.json
      packstore audit cifar.lmdb --fail-on leakage,conflict       in CI
      packstore select imagenet.lmdb -o clean.lmdb --drop audit.json
    """
    from packstore.checking.audit import audit as run

    to_stdout = json_file == Path("-")
    if json_file is not None and not json_file.absolute().parent.is_dir():  # refused before the store is read
        raise click.UsageError(f"--json: there is no directory {printable(str(json_file.absolute().parent))}")
    with suggest_packing(store), progress_bar(quiet or to_stdout) as progress:
        report = run(store, **options, progress=progress)
    if to_stdout:
        click.echo(report.to_json())
    else:
        if json_file is not None:
            json_file.write_text(report.to_json() + "\n", "utf-8")
        audit_rows(report, fail_on if quiet else None, fail_on).echo()
    failed = any(report.counts.get(kind) for kind in fail_on)
    raise click.exceptions.Exit(1 if failed else 0)


def audit_rows(report: AuditReport, only: tuple[str, ...] | None = None, failing: tuple[str, ...] = ()) -> Rows:
    """Makes the rows of an audit: checks, the first findings of each kind, and the total.

    Args:
        report: Report of an audit.
        only: Kinds to list, without checks and total. None lists all.
        failing: Kinds to print in red.
    """
    from packstore.core.findings import list_kinds

    kinds, rows = list_kinds(), Rows(8)
    if only is None:
        rows.add("checked", *report.checks)
    for kind, count in report.counts.items():
        if only is None or kind in only:
            mark = red(kind) if kind in failing else bold(kind)
            rows.add_lines(f"{mark}  {pluralize(count, 'finding')}: {kinds[kind]}")
            listed = [_format_finding(finding) for finding in report.of(kind)[:_LISTED]]
            rows.add_some(None, listed, count, _LISTED, indent="  ")
    if only is None:
        total = sum(report.counts.values())
        summary = pluralize(total, "finding") if total else "nothing found"
        more = "" if report.pixels else "; --pixels looks at the images too"
        records = pluralize(report.records, "record")
        rows.add_lines(f"{printable(str(report.path))}: {bold(summary)} ({records}{more})")
    return rows


def _format_finding(finding: Finding) -> str:
    """Formats a finding on one line, with the first of its records and their keys."""
    pairs = zip(finding.records, finding.keys, strict=False)
    named = (f"{record} ({'?' if key is None else printable(key)})" for record, key in pairs)
    where, what = join_first(named, len(finding.records), _KEYS), printable(finding.what)
    return f"record {where}: {what}" if where else what


EXIT_LOST, EXIT_PARTIAL = 1, 3
"""Nothing was written; the new store lacks records."""


@click.command(cls=Command, short_help="Replace the damaged records of a store from its source.")
@click.argument("damaged", type=StorePath())
@click.option(
    "--from", "source", type=StorePath(), required=True, metavar="SOURCE",
    help="The source of the store, or another store of the same images.",
)  # fmt: skip
@click.option(
    "--out", type=LocalPath(), metavar="FIXED",
    help="The new store; leave it out if DAMAGED is a URL.",
)  # fmt: skip
@OptionsOf("packstore.checking:RepairOptions")
@output_options(quiet="No progress bar; print only if records are lost.")
@cache_options
def repair(damaged: Path, source: Path, out: Path | None, output: Output, **options: Any) -> None:
    """Write a repaired copy of DAMAGED to FIXED, with its damaged records replaced from SOURCE.

    A record from SOURCE is used only if it has the checksum that DAMAGED holds for it; an image that has
    changed is refused by name. Images are encoded again with the options in the store's manifest. If all
    damaged records are replaced, FIXED is byte for byte the undamaged store; otherwise nothing is written
    (see --partial). DAMAGED is only read. If it does not open at all, use packstore salvage.
    If DAMAGED is a URL, its damaged and missing shards are replaced in place by their original bytes, as
    many as SOURCE allows.
    Exits with 0 if nothing is lost, 1 if records are lost, 3 if FIXED was written without them.

    \b
    Examples:
      packstore repair imagenet.lmdb --from imagenet/ --out fixed.lmdb
      packstore repair imagenet.h5 --from imagenet-copy.lmdb --out fixed.h5
      packstore repair s3://bucket/imagenet.lmdb --from imagenet.lmdb
      packstore repair a.pth --from a/ --labels a.csv --out b.pth --partial
    """
    from packstore.checking.repair import repair as run

    with suggest_packing(damaged), output.progress_bar() as progress:
        report = run(damaged, source, out, **options, progress=progress)
    output.show(repair_rows(report), needed=bool(report.lost))
    if report.lost:
        raise click.exceptions.Exit(EXIT_LOST if report.destination is None else EXIT_PARTIAL)


@click.command(cls=Command, short_help="Recover the undamaged records of a broken store.")
@click.argument("damaged", type=LocalPath())
@click.option("--out", type=LocalPath(), required=True, metavar="FIXED", help="The new store.")
@click.option("--unproven", is_flag=True, help="Also take records without a checksum to prove them, and list them.")
@output_options(quiet="No progress bar; print only if records are missing.")
def salvage(damaged: Path, out: Path, output: Output, **options: Any) -> None:
    """Write every undamaged record of DAMAGED to FIXED, even if its index or manifest is broken.

    Repairs a damaged manifest with the help of its digest. Finds records without an index, by scanning the
    pages of an LMDB or the data of HDF5 and .pth files. Checksums prove each record. Missing records are
    listed here and in the manifest of FIXED. DAMAGED is only read. If the source still exists and DAMAGED
    opens, packstore repair recovers more.
    Exits with 0 if every record was recovered, 3 if some are missing, 1 if there are none.

    \b
    Examples:
      packstore salvage broken.lmdb --out rest.lmdb
      packstore salvage broken.pth --out rest.pth --unproven
      packstore salvage shards/ --out rest/ --json | jq .missing
    """
    from packstore.checking.salvage import salvage as run

    with suggest_packing(damaged), output.progress_bar() as progress:
        report = run(damaged, out, **options, progress=progress)
    output.show(salvage_rows(report), needed=not report.complete)
    if not report.complete:
        raise click.exceptions.Exit(EXIT_LOST if report.destination is None else EXIT_PARTIAL)


def repair_rows(report: RepairReport) -> Rows:
    """Makes the rows of a repair: at most 50 replaced and 50 lost records, and counts. The JSON has all attributes."""
    rows, damaged, place = Rows(9), printable(str(report.damaged)), report.destination
    rows.values = asdict(report) | {"damaged": str(report.damaged), "destination": place and str(place)}
    if not report.problem_count:
        rows.add_lines(f"{damaged}: undamaged, so nothing was written")
        return rows
    rows.add_some("replaced", [*map(format_problem, report.replaced)], len(report.replaced))
    rows.add_some("lost", [*map(format_problem, report.lost)], len(report.lost))
    same = "; the digest is that of the undamaged store"
    if (shards := report.shards) is not None:
        said = f"{pluralize(report.problem_count, 'damaged shard')}, {shards.replaced:,} replaced in place"
        lost = (
            f", {shards.lost:,} lost with {pluralize(shards.lost_records, 'record')}; repair again --from a source "
            "that has them, or pack the store again: packstore convert SOURCE URL --overwrite"
        )
        rows.add_lines(f"{damaged}: {said}{lost if shards.lost else same}")
        return rows
    counts = f"{report.copied:,} copied, {len(report.replaced):,} replaced, {len(report.lost):,} lost"
    if place is None:
        rows.add_lines(f"{damaged}: {counts}; nothing was written (--partial writes the rest)")
    else:
        total = pluralize(report.copied + len(report.replaced), "record")
        rows.add_lines(f"{printable(str(place))}: {total}, {counts}{same if report.identical else ''}")
    return rows


def salvage_rows(report: SalvageReport) -> Rows:
    """Makes the rows of a salvage: notes, at most 50 unproven and 50 missing records, counts.

    Adds the command that verifies a complete store.
    """
    rows, place = Rows(9), report.destination
    rows.values |= {"damaged": str(report.damaged), "destination": place and str(place), "complete": report.complete}
    rows.add("note", *map(printable, report.notes), notes=report.notes, recovered=report.recovered)
    for name, problems, count in (
        ("unproven", report.unproven, report.unproven_count),
        ("missing", report.missing, report.missing_count),
    ):
        rows.add_some(name, [*map(format_problem, problems)], count)
        rows.values |= {f"{name}_count": count, name: [asdict(problem) for problem in problems]}
    missing = f"{report.missing_count:,} missing"
    if not (report.complete or report.missing_count or report.unproven_count):
        missing = "an unknown number missing"
    counts = f"{report.recovered:,} recovered, {missing}"
    if report.unproven_count:
        counts += f"; {report.unproven_count:,} of the recovered have no checksum to prove them"
    if place is None:
        rows.add_lines(f"{printable(str(report.damaged))}: {counts}; nothing was written")
    else:
        rows.add_lines(f"{printable(str(place))}: {pluralize(report.recovered, 'record')}, {counts}")
    if place is not None and report.complete:
        rows.add_lines(f"prove it with: packstore verify {shell_quote(place)}")
    return rows
