"""``packstore select``."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from packstore.cli.common import Kinds, StorePath, progress_bar
from packstore.cli.merge import describe_plan, describe_report
from packstore.cli.options import Command, OptionsOf, cache_options, dry_run_option, quiet_option


class Shares(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """Splits with their shares: ``train=0.9,val=0.1``."""

    name = "shares"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """Parses ``train=0.9,val=0.1`` to shares by split.

        Fails for other text, and for a repeated split. Does not check the size of a share. Returns a dict unchanged.
        """
        if isinstance(value, dict):
            return value
        shares: dict[str, float] = {}
        for part in str(value).split(","):
            name, _, share = part.rpartition("=")
            name = name.strip()
            if name in shares:
                self.fail(f"{value!r} has the split {name!r} twice: give each split one share", param, ctx)
            try:
                shares[name] = float(share)
            except ValueError:
                name = ""
            if not name:
                self.fail(f"{value!r} should be splits with their shares, such as train=0.9,val=0.1", param, ctx)
        return shares


@click.command(cls=Command, short_help="Write a new store with some records of a store.")
@click.argument("store", type=StorePath())
@click.option("-o", "--out", "destination", required=True, type=StorePath(), help="The new store.")
@OptionsOf("packstore.packing.composing_options:SelectOptions", {"splits": Shares(), "drop_kinds": Kinds()})
@dry_run_option
@quiet_option()
@cache_options
def select(store: Path, destination: Path, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Copy some records of STORE, byte for byte, to a new store, OUT. STORE is not changed.

    CONDITION compares key, split, label or another column of single values: == != < <= > >=, in (a, b), like "n01*";
    with and, or, not and parentheses. --where applies first, then --per-class, --sample and --split. The same --seed
    draws the same records. More in packstore guide growing.

    \b
    Examples:
      packstore select all.lmdb -o pets.lmdb --where 'label in (cat, dog)'
      packstore select all.lmdb -o small.lmdb --per-class 50
      packstore select all.lmdb -o split.lmdb --split train=0.9,val=0.1 --stratify
      packstore select all.lmdb -o coarse.lmdb --relabel names.csv
      packstore select all.lmdb -o a.lmdb --drop audit.json --drop-kinds leakage
      packstore select all.lmdb -o s3://bucket/all.lmdb
    """
    from packstore.packing.composing_options import SelectOptions
    from packstore.packing.merge import write_composition
    from packstore.packing.select import plan_select

    started = time.monotonic()
    with progress_bar(quiet) as progress, ExitStack() as stack:
        plan = plan_select(store, destination, SelectOptions(**options), stack, progress)
        if dry_run:
            click.echo(describe_plan(plan))
            return
        report = write_composition(plan, progress, started)
    if not quiet:
        click.echo(describe_report(report))
