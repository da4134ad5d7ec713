"""Options by which the images of a source are encoded: resolves them, reads them back from a manifest, and makes the
encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from packstore.core.errors import SampleError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.modes import RGB, is_reading_option, parse_mode
from packstore.core.registry import ENCODINGS, FORMATS
from packstore.images.encode import EncodedImage, EncodeOptions, Encoder, Encoding, parse_size
from packstore.images.orientation import readers_transpose
from packstore.images.reading import Reading
from packstore.images.sniff import MAX_PIXELS
from packstore.packing.options import ConvertOptions
from packstore.sources.base import Entry, Source, Survey

DEFAULT_QUALITY = 90
EXIF_ORIENTED = "exif_oriented"
"""Name of the option with the number of records whose image has an EXIF orientation."""
GEOMETRY = ("size", "fit", "resize", "max_side", "exif_transpose")
_SAMPLED = 24
"""Maximum number of samples that are encoded."""


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
        from packstore.images.normalization import parse_normalization

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
