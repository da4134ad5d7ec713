"""Options of a conversion in the manifest of its store: writes them, and reads them back."""

from __future__ import annotations

import json

from packstore.core.manifest import Manifest
from packstore.core.modes import is_reading_option
from packstore.core.registry import ENCODINGS
from packstore.images.encode import EncodeOptions, parse_size
from packstore.images.reading import Reading
from packstore.images.sniff import MAX_PIXELS
from packstore.packing.plan import DEFAULT_QUALITY, Plan
from packstore.packing.source_arguments import format_answers

EXIF_ORIENTED = "exif_oriented"
"""Name of the option with the number of records whose image has an EXIF orientation."""
_GEOMETRY = ("size", "fit", "resize", "max_side", "exif_transpose")


def options_to_record(plan: Plan) -> dict[str, str | int | float | bool | None]:
    """Returns the options that shaped the records, as the manifest stores them. :func:`restore_encode_options` reads
    them.

    If the source is a store and nothing is resized, takes over its options of size. Takes over its split unless one is
    named. If the records stay unchanged, takes over quality and ``progressive``, too.
    """
    encode = plan.encode
    size = encode.size
    options: dict[str, str | int | float | bool | None] = {
        "size": None if size is None else f"{size}" if isinstance(size, int) else f"{size[0]}x{size[1]}",
        "fit": None if size is None else encode.fit,
        "resize": encode.resize,
        "max_side": encode.max_side,
        "exif_transpose": encode.exif_transpose,
        "quality": encode.quality if "quality" in ENCODINGS[encode.encoding].accepts else None,
        "split": plan.options.split,
        **({} if plan.options.annotation_frame is None else {"annotation_frame": plan.options.annotation_frame}),
        **({} if encode.progressive is None else {"progressive": encode.progressive}),
        **({"link": "absolute" if plan.relative_link_folder is None else "relative"} if plan.options.link else {}),
        **encode.reading.answers(),
        **_collect_column_answers(plan),
        **({} if plan.source.options.frames is None else {"frames": plan.source.options.frames}),
        **{name: value for name, value in plan.source.options.array_names.items() if value is not None},
    }
    for name in ("ignore", "splits", "columns", "pair", "sidecar", "masks"):
        if given := getattr(plan.source.options, name):
            options[name] = json.dumps(given)
    store = plan.survey.store
    if store is not None and not encode.resizes:
        # The pixels are unchanged, so the options with which they were made still describe them.
        options.update({name: store.options.get(name) for name in _GEOMETRY})
        options["exif_transpose"] = encode.exif_transpose or bool(store.options.get("exif_transpose"))
        options["split"] = options["split"] or store.options.get("split")
        if "annotation_frame" in store.options:
            options.setdefault("annotation_frame", store.options["annotation_frame"])
        if plan.encoder.passes_through:
            options["quality"] = store.options.get("quality")
            if "progressive" in store.options:
                options["progressive"] = store.options["progressive"]
    return options


def _collect_column_answers(plan: Plan) -> dict[str, str]:
    """Returns the options of single image columns, including those recorded by a source that is a store."""
    given = format_answers(plan.options.column_answers)
    store = plan.survey.store
    if store is None:
        return given
    asked = plan.options.column_answers
    kept = read_column_answers(store).items()
    return {name: str(value) for name, value in kept if name.partition(".")[0] not in asked} | given


def read_column_answers(manifest: Manifest) -> dict[str, str | int | float | bool | None]:
    """Returns the options of single image columns in a manifest, by ``COLUMN.NAME``."""
    return {name: value for name, value in manifest.options.items() if "." in name and is_reading_option(name)}


def record_counts(manifest: Manifest) -> dict[str, int]:
    """Returns the counts of records in a manifest's options, such as ``exif_oriented``.

    These are all options with an integer, except geometry, quality and split.
    """
    known = (*_GEOMETRY, "quality", "split")
    return {k: v for k, v in manifest.options.items() if k not in known and type(v) is int}


def drop_record_counts(manifest: Manifest) -> dict[str, str | int | float | bool | None]:
    """Returns the options of a manifest without the counts of records, for another store with some of its records."""
    counted = record_counts(manifest)
    return {name: value for name, value in manifest.options.items() if name not in counted}


def same_encoding_options(manifest: Manifest, other: Manifest) -> bool:
    """Tells if two stores were resized, rotated and compressed with the same options.

    Then equal images have equal records. For different encodings, compares only resizing and rotation.
    """
    names = (*_GEOMETRY, "quality", "progressive") if manifest.encoding == other.encoding else _GEOMETRY
    return all(manifest.options.get(name) == other.options.get(name) for name in names)


def restore_encode_options(manifest: Manifest, decoder: str = "auto", max_pixels: int = MAX_PIXELS) -> EncodeOptions:
    """Restores the options with which a store's images were encoded from its manifest.

    Takes defaults for options that the manifest lacks. ``check`` is ``none``.
    """
    o = manifest.options
    size = o.get("size")
    return EncodeOptions(
        encoding=manifest.encoding,
        size=None if size is None else parse_size(str(size)),
        fit=str(o.get("fit") or "crop"),
        resize=_optional_int(o.get("resize")),
        max_side=_optional_int(o.get("max_side")),
        quality=_optional_int(o.get("quality")) or DEFAULT_QUALITY,
        normalization=manifest.normalization,
        exif_transpose=bool(o.get("exif_transpose", False)),
        progressive="baseline" if o.get("progressive") == "baseline" else None,
        check="none",
        decoder=decoder,
        max_pixels=max_pixels,
        reading=Reading.restore(manifest.image.mode, o),
    )


def _optional_int(value: object) -> int | None:
    """Returns the value if it is an integer, but no bool; else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
