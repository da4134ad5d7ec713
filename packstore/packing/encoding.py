"""Options by which the images of a source are read and encoded: resolves them, reads them back from a manifest, and
makes the encoder.

The mode (channels and dtype) of an image column is the requested one, the source's, or that of the first image. An
option of a single column, such as ``--column NAME.depth=scale``, answers a question about the files of that column. So
these options are called answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from packstore.core.columns import Buffer, Column, find_file_columns
from packstore.core.errors import DecodeError, SampleError, SourceError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.modes import RGB, Mode, is_reading_option, mode_of, parse_mode, with_dtype
from packstore.core.registry import ENCODINGS, FORMATS
from packstore.images.encode import EncodedImage, EncodeOptions, Encoder, Encoding, parse_size
from packstore.images.orientation import readers_transpose
from packstore.images.reading import OF_SOURCES, Reading
from packstore.images.sniff import MAX_PIXELS, HeaderError, check_header
from packstore.packing import ConvertOptions
from packstore.packing.source_arguments import KEEP, Answers
from packstore.sources.base import Entry, Sample, Source, Survey

DEFAULT_QUALITY = 90
EXIF_ORIENTED = "exif_oriented"
"""Name of the option with the number of records whose image has an EXIF orientation."""
GEOMETRY = ("size", "fit", "resize", "max_side", "exif_transpose")
_SAMPLED = 24
"""Maximum number of samples that are encoded."""
_LOOKED_FOR = 1000
"""Number of samples among which the first file of a column is looked for."""


def resolve_encoding(
    format: str, usual: str, survey: Survey, options: ConvertOptions, reading: Reading
) -> EncodeOptions:
    """Returns the options of the encoder, with all defaults filled in.

    Raises :class:`UsageError` for options that do not fit the encoding or the source.
    """
    source: type[Encoding] = ENCODINGS[survey.encoding]
    store = survey.store
    normalized = source.layout == "CHW"
    default = None if normalized else FORMATS[format].default_encoding
    if default == "float16" and reading.pixels.dtype != "uint8":
        default = "float32"  # half precision has 11 bits
    asked = options.encoding or default or survey.encoding
    # ``original`` becomes the encoding of a source of arrays.
    encoding: type[Encoding] = ENCODINGS[asked].choose_for_source(source)
    if options.encoding in (None, "original") and source.layout is not None:
        mode = parse_mode((survey.mode if store is None else store.image.mode) or RGB.name)
        if mode.dtype != reading.pixels.dtype == "uint8":  # more bits, which are reduced to 8
            encoding = ENCODINGS["uint8"]
    normalize = options.normalize
    if options.quality is not None and "quality" not in encoding.accepts:
        raise UsageError(f"quality is for the encoding jpeg, not {encoding.name}; leave it out, or add --encoding jpeg")
    if "normalization" not in encoding.accepts:
        if normalize is not None:
            raise UsageError(
                f"--normalize is for floating point encodings, not {encoding.name}; add --encoding float16, or leave "
                "it out and normalise when loading"
            )
        normalization = None
    elif normalized and normalize is None:
        normalization = store.normalization if store else None
    else:
        if normalize is None:
            normalize = usual if reading.mode == RGB.name else "none"
        from packstore.images.reading import parse_normalization

        normalization = None if normalize == "auto" else parse_normalization(normalize, reading.pixels)
    if normalize == "auto" and normalized:
        raise UsageError(f"the source is normalised already ({survey.encoding}); leave --normalize out to keep it")
    return EncodeOptions(
        encoding=encoding.name,
        size=options.size,
        fit=options.fit or "crop",
        resize=options.resize,
        max_side=options.max_side,
        quality=DEFAULT_QUALITY if options.quality is None else options.quality,
        normalization=normalization,
        exif_transpose=options.exif_transpose or (store is not None and readers_transpose(store)),
        check=options.check,
        decoder=options.decoder,
        max_pixels=options.max_pixels,
        progressive=options.progressive,
        reading=reading,
        # Do not ask again about files of a store, unless they will be read in another way.
        asks=store is None or reading != replace(Reading.restore(store.image.mode, store.options), chosen=True),
        skips_losses=options.on_error == "skip",
    )


def read_column_answers(manifest: Manifest) -> dict[str, str | int | float | bool | None]:
    """Returns the options of single image columns in a manifest, by ``COLUMN.NAME``."""
    return {name: value for name, value in manifest.options.items() if "." in name and is_reading_option(name)}


def record_counts(manifest: Manifest) -> dict[str, int]:
    """Returns the counts of records in a manifest's options, such as ``exif_oriented``.

    These are all options with an integer, except geometry, quality and split.
    """
    known = (*GEOMETRY, "quality", "split")
    return {k: v for k, v in manifest.options.items() if k not in known and type(v) is int}


def drop_record_counts(manifest: Manifest) -> dict[str, str | int | float | bool | None]:
    """Returns the options of a manifest without the counts of records, for another store with some of its records."""
    counted = record_counts(manifest)
    return {name: value for name, value in manifest.options.items() if name not in counted}


def same_encoding_options(manifest: Manifest, other: Manifest) -> bool:
    """Tells if two stores were resized, rotated and compressed with the same options.

    Then equal images have equal records. For different encodings, compares only resizing and rotation.
    """
    names = (*GEOMETRY, "quality", "progressive") if manifest.encoding == other.encoding else GEOMETRY
    return all(manifest.options.get(name) == other.options.get(name) for name in names)


def restore_encode_options(manifest: Manifest, decoder: str = "auto", max_pixels: int = MAX_PIXELS) -> EncodeOptions:
    """Restores the options with which a store's images were encoded from its manifest.

    Takes defaults for options that the manifest lacks. ``check`` is ``none``.
    """
    o = manifest.options
    size, numbers = o.get("size"), {name: value for name, value in o.items() if type(value) is int}
    return EncodeOptions(
        encoding=manifest.encoding,
        size=None if size is None else parse_size(str(size)),
        fit=str(o.get("fit") or "crop"),
        resize=numbers.get("resize"),
        max_side=numbers.get("max_side"),
        quality=numbers.get("quality") or DEFAULT_QUALITY,
        normalization=manifest.normalization,
        exif_transpose=bool(o.get("exif_transpose", False)),
        progressive="baseline" if o.get("progressive") == "baseline" else None,
        check="none",
        decoder=decoder,
        max_pixels=max_pixels,
        reading=Reading.restore(manifest.image.mode, o),
    )


def make_encoder(
    encode: EncodeOptions, survey: Survey, shape: tuple[int, ...] | None, *, reencode: bool = False
) -> Encoder:
    """Makes the encoder for the images of a source.

    ``shape`` is the shape of all records, None if they differ. ``reencode`` decodes and encodes files even if they
    could stay as they are.
    """
    store = survey.store
    files = ENCODINGS[survey.encoding].layout is None
    mode = survey.mode if store is None else store.image.mode
    return Encoder(
        encode,
        "original" if reencode and files else survey.encoding,
        shape,
        store.normalization if store else None,
        parse_mode(mode or RGB.name),
    )


def encode_samples(
    encoder: Encoder, source: Source, survey: Survey, split: str | None
) -> Iterator[tuple[Entry, EncodedImage]]:
    """Encodes 8 to 24 samples, spread over the source, to learn sizes and shapes. Skips bad samples."""
    # Fewer in a small source, for which they would take a large part of the conversion's time.
    count = max(8, min(_SAMPLED, survey.records // 100))
    for entry in source.pick_entries(split, survey.records, count):
        try:
            encoded = encoder(entry.key, source.image(entry))
        except SampleError:
            continue
        yield entry, encoded


def measure_sizes(encoder: Encoder, source: Source, survey: Survey, split: str | None) -> list[tuple[int, int]]:
    """Encodes a few samples; returns (bytes in the source, bytes as a record) of each.

    If files stay unchanged, or all records have one size, reads nothing and returns an empty list.
    """
    if encoder.passes_through or encoder.columns()[0].kind == "fixed":
        return []
    samples = encode_samples(encoder, source, survey, split)
    return [(entry.size_bytes, memoryview(encoded.record).nbytes) for entry, encoded in samples]


def resolve_uniform_shape(
    encode: EncodeOptions, source: Source, survey: Survey, split: str | None
) -> tuple[int, ...] | None:
    """Returns the shape ``(H, W, C)`` of all records, or None if they may differ.

    If only the images can tell, decodes a few samples and assumes that all have their shape; None if all of these are
    bad. Raises :class:`UsageError` if the encoding needs one shape, but the shapes of the samples differ.
    """
    layout = ENCODINGS[encode.encoding].layout
    if layout is None:
        return None
    if ENCODINGS[survey.encoding].layout == "CHW" and survey.shape is not None:
        return (*survey.shape[1:], survey.shape[0])
    if encode.size is not None:
        height, width = (encode.size, encode.size) if isinstance(encode.size, int) else encode.size
        return (height, width, encode.reading.pixels.channels)
    if survey.shape is not None:
        return survey.shape
    if layout == "HWC":
        return None
    pixels = replace(encode, encoding=encode.reading.pixels.dtype, size=None, normalization=None)
    shapes: dict[tuple[int, ...], str] = {}
    for entry, encoded in encode_samples(make_encoder(pixels, survey, None), source, survey, split):
        if encoded.shape is not None:
            shapes.setdefault(tuple(encoded.shape), entry.key)
    if len(shapes) > 1:
        some = ", ".join(f"{h}x{w} ({printable(key)})" for (h, w, _), key in islice(shapes.items(), 3))
        proposal = 224 if min(min(shape[:2]) for shape in shapes) >= 64 else 32
        answer = f"give --size, for example --size {proposal}, or keep the files with --encoding original"
        if any(column.traits.moves for column in survey.columns):  # which belong to the pixels, so --size is refused
            answer = f"keep their sizes with --encoding {encode.reading.pixels.dtype} or in another format"
        raise UsageError(
            f"{encode.encoding} needs images of one size, and these differ (height x width): {some}; {answer}"
        )
    return next(iter(shapes), None)


def resolve_reading(source: Source, survey: Survey, options: ConvertOptions) -> Reading:
    """Resolves how to read the images of a source: their mode, and the options for depth, alpha and frames.

    Reads image files as RGB unless an option says otherwise; with ``keep``, opens the first image to learn its mode.
    Arrays and stores have a mode of their own.

    Raises:
        UsageError: An option does not apply to this source.
        SourceError: The first image cannot be read.
    """
    store = survey.store
    base = Reading(survey.mode or RGB.name) if store is None else Reading.restore(store.image.mode, store.options)
    answers = {name: getattr(options, name) for name in ("depth", "alpha", "frames")}
    given = {name: str(value) for name, value in answers.items() if value not in (None, KEEP)}
    if given.get("frames") in OF_SOURCES:
        del given["frames"]
    if options.pixels is not None or (base.by_pillow and not given and options.mode in (None, RGB.name)):
        if options.pixels is not None and ENCODINGS[survey.encoding].layout is not None:
            raise UsageError(
                f"{printable(str(source.path))} ({source.kind}) holds pixels of mode {base.pixels}, not image files: "
                "leave pixels out"
            )
        return Reading(chosen=store is not None, by_pillow=True)
    reading = replace(Reading.restore(base.mode, base.answers() | given), chosen=store is not None)
    holds_arrays = ENCODINGS[survey.encoding].layout == "HWC" and not find_file_columns(survey.columns)
    if holds_arrays and not source.read_like_store:
        _refuse_unused_options(base, options, str(source.path), source.kind)
        _refuse_wide_scale(base, options, survey, str(source.path))
    is_raw = survey.encoding == base.pixels.dtype and (store is None or store.normalization is None)
    if ENCODINGS[survey.encoding].layout == "CHW" and not (is_raw and options.depth not in (None, KEEP)):
        _refuse_other_mode(base, options, is_raw)
        return base
    if options.mode not in (None, KEEP):
        _refuse_narrower_mode(reading, survey, options.mode)
        return replace(reading, mode=options.mode, chosen=True)
    if ENCODINGS[survey.encoding].layout is not None:
        return _resolve_array_reading(reading, given)
    if KEEP not in (options.mode, options.depth, options.alpha):
        return reading
    return replace(
        reading, mode=resolve_kept_mode(_read_first_mode(source, survey, options, reading.frame), options).name
    )


def _refuse_other_mode(base: Reading, options: ConvertOptions, is_raw: bool) -> None:
    """Raises :class:`UsageError` for options that would change the mode of floating point values."""
    given = {name: getattr(options, name) for name in ("mode", "depth", "alpha", "frames")}
    named = [name for name, value in given.items() if value not in (None, KEEP, base.mode, *OF_SOURCES)]
    if named:
        # The values are the source's own, not normalised, so a window can make them 8 bits.
        if is_raw and "mode" in named:
            raise UsageError(
                f"the source holds floating point values of mode {base.pixels}; say how they become 8 bits with "
                "--depth window:LO,HI, or scale if they are 0 … 1"
            )
        raise UsageError(
            f"the source holds floating point values of mode {base.pixels}, so {', '.join(named)} cannot apply; leave "
            f"{'it' if len(named) == 1 else 'them'} out, or pack from the images"
        )


def _refuse_unused_options(base: Reading, options: ConvertOptions, path: str, kind: str) -> None:
    """Raises :class:`UsageError` for options that have no effect on the source's arrays."""
    given = {
        "frames": options.frames is not None and options.frames not in OF_SOURCES,  # those apply when it is opened
        "depth": options.depth not in (None, KEEP) and base.pixels.dtype == "uint8",
        "alpha": options.alpha not in (None, KEEP) and not base.pixels.has_alpha,
    }
    if idle := [name for name, is_idle in given.items() if is_idle]:
        raise UsageError(
            f"{printable(path)} ({kind}) holds pixels of mode {base.pixels}, so {', '.join(idle)} cannot apply; leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )


def _refuse_wide_scale(base: Reading, options: ConvertOptions, survey: Survey, path: str) -> None:
    """Raises :class:`UsageError` for ``depth="scale"`` if whole numbers may not use the full range of their dtype."""
    dtype, ends = base.pixels.dtype, survey.value_range
    if options.depth != "scale" or dtype == "float32":
        return
    # Such images would become almost black, or gray.
    if not survey.uses_all_bits:
        limits = np.iinfo(dtype)
        raise UsageError(
            f"{printable(path)} holds values of {dtype}, of which scans use an unknown part; --depth scale would take "
            f"all, {limits.min} to {limits.max}; give --depth window:LO,HI, the values of black and white"
        )
    if ends is not None and ends != (np.iinfo(dtype).min, np.iinfo(dtype).max):
        raise UsageError(
            f"{printable(path)} holds values from {ends[0]} to {ends[1]}; --depth scale takes the range of {dtype}; "
            f"give --depth window:{ends[0]},{ends[1]}, or a narrower window"
        )


def _refuse_narrower_mode(reading: Reading, survey: Survey, mode: str) -> None:
    """Raises :class:`UsageError` if ``mode`` would take bits or alpha from arrays, and no option says how."""
    found, wanted = reading.pixels, parse_mode(mode)
    if ENCODINGS[survey.encoding].layout is None:
        return
    if found.has_alpha and not wanted.has_alpha and reading.alpha is None:
        raise UsageError(
            f"the source holds images of mode {found}, and mode {wanted} has no alpha: say with --alpha drop or "
            "over:COLOUR what becomes of it, or leave --mode out"
        )
    if found.dtype != wanted.dtype and (reading.depth is None or wanted.dtype != "uint8"):
        raise UsageError(
            f"the source holds images of mode {found}, from which mode {wanted} cannot be made: "
            "say with --depth scale, clip or window:LO,HI how values become 8 bits, or leave --mode out"
        )


def _resolve_array_reading(reading: Reading, given: Mapping[str, str]) -> Reading:
    """Returns how to read arrays: in their own mode, reduced as ``given`` says."""
    mode = reading.pixels
    # Only given options count: a store's recorded options were applied when it was packed.
    if "depth" in given and mode.dtype != "uint8":
        mode = with_dtype(mode, "uint8")
    if "alpha" in given and mode.has_alpha:
        mode = mode_of(mode.channels - 1, mode.dtype)
    return replace(reading, mode=mode.name)


def resolve_kept_mode(found: Mode, options: ConvertOptions | Answers) -> Mode:
    """Returns the mode of images for options of which one is ``keep``.

    - ``mode`` is ``keep``: the mode ``found``.
    - Else ``found`` with 8 bits unless ``depth`` is ``keep``, and without alpha unless ``alpha`` is ``keep``. Gray of 8
      bits becomes RGB.
    """
    if options.mode == KEEP:
        return found
    dtype = found.dtype if options.depth == KEEP else "uint8"
    mode = found if options.alpha == KEEP or not found.has_alpha else mode_of(found.channels - 1, found.dtype)
    if dtype == "uint8" and mode.channels - mode.has_alpha == 1:
        return mode_of(RGB.channels + mode.has_alpha, dtype)  # as files are read unless they are asked to be gray
    return with_dtype(mode, dtype)


def _read_first_mode(source: Source, survey: Survey, options: ConvertOptions, frame: int) -> Mode:
    """Reads the first image and returns the mode of its frame ``frame``."""
    if not survey.counted:
        raise UsageError("keep reads the first image beforehand, and an iterable can be read once; name the mode")
    for entry in islice(source.pick_entries(options.split, survey.records, 1), 1):
        content = source.image(entry)
        data = getattr(content, "image", content)
        if isinstance(data, np.ndarray):
            return mode_of(data.shape[2], str(data.dtype))
        return read_file_mode(data, printable(entry.key), options.max_pixels, frame)
    raise SourceError(f"{printable(str(source.path))}: there is no image whose mode could be kept")


def read_file_mode(data: Buffer, where: str, max_pixels: int, frame: int = 0) -> Mode:
    """Reads the mode of a frame of an image file; that of the first frame if ``frame`` does not exist.

    Raises :class:`SourceError` for a damaged or unknown file; the message begins with ``where``.
    """
    from packstore.images import image_files

    try:
        info = check_header(data)
        described = image_files.describe_image(memoryview(data), info)
        if described is not None and 0 < frame < described.frames:
            described = image_files.describe_image(memoryview(data), info, frame)
        if described is None:
            image_files.decode(memoryview(data), max_pixels)  # raises with the reason
    except HeaderError as error:
        raise SourceError(f"{where}: {error.reason}, and its mode is to be kept") from None
    except DecodeError as error:
        raise SourceError(f"{where}: {error}; its mode is to be kept") from None
    if described is None:
        raise SourceError(f"{where}: its mode cannot be read; name the mode instead of keep")
    return described.mode


def _refuse_other_columns(files: Mapping[str, Column], options: ConvertOptions) -> None:
    """Raises :class:`UsageError` if ``--column NAME.OPTION=…`` names no column of image files."""
    for name, own in options.column_answers.items():
        if name not in files:
            known = ", ".join(files) or "none"
            raise UsageError(
                f"--column {printable(name)}.{next(iter(own))}: there is no column of image files {printable(name)!r} "
                f"beside the main image; there are: {known}"
            )


def resolve_column_modes(source: Source, survey: Survey, options: ConvertOptions) -> Survey:
    """Returns the survey with the mode of each column of image files.

    - An option names the mode: that mode.
    - ``keep``: the mode of the column's first file, or the declared mode if ``keep`` is for all columns.
    - Only ``depth`` is given for the column: RGB.
    - Else the mode stays.

    For ``keep`` reads samples until each such column had a file, 1,000 at most, and skips bad samples. Samples that can
    be read only once are not read: a ``keep`` for all columns has no effect on them.

    Raises:
        SourceError: The first file of a column cannot be read.
        UsageError: An option names a column that does not exist, or a single column has ``keep`` and the samples can be
            read only once.
    """
    files = {column.name: column for column in find_file_columns(survey.columns)}
    _refuse_other_columns(files, options)
    modes: dict[str, str] = {}
    wanted: dict[str, Column] = {}
    for name, column in files.items():
        own, answers = options.column_answers.get(name, {}), options.answers_for(name)
        if own.get("mode") not in (None, KEEP):
            modes[name] = own["mode"]
        elif KEEP in answers and (column.mode is None or KEEP in own.values()):
            wanted[name] = column
        elif "depth" in own:
            modes[name] = RGB.name
    if wanted and not survey.counted:
        if any(KEEP in options.column_answers.get(name, {}).values() for name in wanted):
            raise UsageError(
                "keep reads the first file of a column beforehand, and an iterable can be read once; name the mode"
            )
        wanted = {}
    for entry in islice(source.fetch(source.entries(options.split)), _LOOKED_FOR) if wanted else ():
        try:
            content = source.read(entry)
        except SampleError:
            continue  # packing reports it
        if not isinstance(content, Sample):
            break
        for name in wanted.keys() - modes.keys():
            value = content.values[name]
            if found_files := _extract_files(wanted[name], value, content.at_rest):
                where = f"{printable(entry.key)}: column {name!r}"
                answers = options.answers_for(name)
                frame = Reading(frames=answers.frames).frame
                mode = read_file_mode(found_files[0], where, options.max_pixels, frame)
                modes[name] = resolve_kept_mode(mode, answers).name
        if modes.keys() >= wanted.keys():
            break
    kept = {name: None if mode == RGB.name else mode for name, mode in modes.items()}
    return replace(
        survey, columns=tuple(replace(c, mode=kept[c.name]) if c.name in kept else c for c in survey.columns)
    )


def _extract_files(column: Column, value: Any, at_rest: bool) -> Sequence[Any]:
    """Returns the image files in a sample's value, none if the value is missing."""
    if at_rest and value:  # it has the stored form
        return column.traits.files(column, value)
    return value if isinstance(value, list) else [value] if value else []
