"""Converts a user's values to plain ones, whatever library they come from: bytes of files, numpy arrays, numbers,
strings.

Does not import PIL or torch: their objects are recognised by type; if one exists, its library is loaded already.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ITEM_SIZE
from packstore.core.errors import printable
from packstore.core.fields import Array, Boxes, Bytes, Field, Image, Images, Json, Keypoints, Label, Labels, Mask, Text
from packstore.core.files import open_regular
from packstore.core.modes import DTYPES, RGB, Mode, mode_of, parse_mode
from packstore.images.encode import EncodeOptions
from packstore.images.image_files import find_losses
from packstore.images.reading import Reading, convert_pixels
from packstore.images.sniff import begins_like_image, check_header
from packstore.sources.listing import IMAGE_SUFFIXES

# Names of whole numbers that are labels, in formats without declarations of fields.
LABEL_NAMES = ("label", "target", "class", "y", "cls")
_PNG = b"\x89PNG\r\n\x1a\n"
_MASK_COLOURS = (b"\0", b"\3")  # of a PNG, byte 25: gray, palette


def number_equal_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns names of classes, of which equal ones get their number: ``crane (134)``, as in ImageNet."""
    count = Counter(names)
    return tuple(name if count[name] == 1 else f"{name} ({number})" for number, name in enumerate(names))


def is_pil(value: Any) -> bool:
    """Tells if a value is a Pillow image."""
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def is_tensor(value: Any) -> bool:
    """Tells if a value is a torch tensor."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def is_path(value: Any) -> bool:
    """Tells if a value is a path object. False for a text, which may be a path only as an image or mask."""
    return isinstance(value, PurePath)


def is_file(value: Any) -> bool:
    """Tells if the value of an image or mask is a file: a path, also as a text, or bytes."""
    return isinstance(value, (bytes, bytearray, memoryview, str, PurePath))


def array_of(value: Any) -> NDArray[Any]:
    """Converts a tensor, or anything numpy understands, to an array. A bfloat16 tensor becomes float32.

    Raises :class:`ValueError` for a tensor that is no array, such as a sparse or ``meta`` tensor.
    """
    if not is_tensor(value):
        return np.asarray(value)
    try:
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"found a tensor that is not an array: {str(error).partition('. ')[0]}") from None


def dtype_name(value: Any) -> str:
    """Returns the name of the dtype of a tensor or array. Raises :class:`ValueError` for a dtype that no column has."""
    name = str(value.dtype).removeprefix("torch.") if is_tensor(value) else np.asarray(value).dtype.name
    if name not in ITEM_SIZE:
        raise ValueError(f"found {name} values; a column holds one of {', '.join(ITEM_SIZE)}")
    return name


def nbytes_of(value: Any) -> int:
    """Estimates the bytes of a value in memory.

    - Path: the size of its file, 0 without a file.
    - Pillow image: 3 bytes for each pixel.
    - List or tuple: every item counts as the first.
    - Dict: all its values.
    - Bytes, text, array or tensor: its own size.
    - None, number or unknown type: 8.
    """
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        return len(value)
    if is_path(value):
        with suppress(OSError):  # reported when it is read
            return Path(value).stat().st_size
        return 0
    if is_pil(value):
        width, height = value.size
        return 3 * int(width) * int(height)
    try:
        if isinstance(value, Mapping):
            return sum(map(nbytes_of, value.values()))
        if isinstance(value, (list, tuple)):
            return 8 + sum(map(nbytes_of, value[:1])) * len(value)
    except RecursionError:
        return 8  # nested too deeply for JSON, which is reported later
    with suppress(RuntimeError):  # a sparse tensor, which is refused when it is converted
        return int(getattr(value, "nbytes", 8))
    return 8


def to_plain(field: Field, value: Any) -> Any:
    """Converts a value to plain types, for its field. Idempotent.

    - Files stay paths or bytes.
    - Pixels of images become arrays of their mode, those of masks arrays ``(H, W)``.
    - Tensors and lists of tensors become arrays.
    - None and other values stay.

    Raises :class:`ValueError` for pixels and lists of files that do not fit the field, and for torchvision's boxes in
    another format than XYXY. Other values are checked when they are stored.
    """
    if value is None:
        return None
    if isinstance(field, Image):
        return value if is_file(value) else convert_image(value, field.mode)[0]
    if isinstance(field, Mask):
        return value if is_file(value) else _convert_mask(value, field)
    if isinstance(field, Images):
        if not isinstance(value, (list, tuple)) or not all(map(is_file, value)):
            raise ValueError(f"found {type(value).__name__}; expected a list of image files, each a path or its bytes")
        return value
    if isinstance(field, Boxes) and getattr(value, "format", None) is not None:
        name = getattr(value.format, "name", value.format)
        if str(name).upper() != "XYXY":
            raise ValueError(f"found boxes as {name}; expected XYXY: convert them, as convert_bounding_box_format does")
    if is_tensor(value):
        return array_of(value)
    if isinstance(field, (Boxes, Keypoints, Labels, Array)) and isinstance(value, (list, tuple)) and value:
        return np.stack([array_of(row) for row in value]) if is_tensor(value[0]) else value
    return value


def convert_image(value: Any, mode: str | None) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Converts the pixels of an image to a mode, or to RGB for None; gray can become any mode with colours.

    Returns pixels ``(H, W, C)``, or ``(C, H, W)`` for floating point, and names in
    :data:`packstore.images.image_files.UNIFIED`. These are that of gray that becomes colour, and for a Pillow image
    those of colours that are converted and frames that are left out.

    Raises :class:`ValueError` for another dtype or number of channels, and for no pixels.
    """
    array = _to_channels_last(value)
    if not array.size:
        raise ValueError(f"found an image without pixels, of shape {array.shape}")
    wanted = parse_mode(mode or RGB.name)
    gray = array.shape[2] == 1 and wanted.has_colour
    if array.dtype != wanted.dtype or (array.shape[2] != wanted.channels and not gray):
        found = f"{array.dtype} with {array.shape[2]} channels"
        raise ValueError(f"found an image of {found}; expected mode {wanted} of {wanted.dtype}")
    unified: tuple[str, ...] = ()
    if is_pil(value):
        from packstore.images.pillow import pillow_conversions

        unified = pillow_conversions(value)
    if array.shape[2] != wanted.channels:
        unified += ("gray_to_colour",)
        array = convert_pixels(array, mode_of(1, wanted.dtype), Reading(wanted.name))
    return np.ascontiguousarray(array.transpose(2, 0, 1) if array.dtype.kind == "f" else array), unified


def infer_mode(values: Sequence[Any]) -> str | None:
    """Infers the mode of the pixels of all ``values``; None for RGB. Several modes of 8 bits become RGB, or RGBA if a
    mode has alpha.

    Raises :class:`ValueError` for other different modes, and for the reasons of :func:`_infer_single_mode`.
    """
    modes = {_infer_single_mode(value) for value in values}
    if len(modes) == 1:
        mode = modes.pop()
        return None if mode == RGB else mode.name
    if any(mode.dtype != "uint8" for mode in modes):
        names = ", ".join(sorted(mode.name for mode in modes))
        raise ValueError(f"found images of modes {names}: declare one, with packstore.Image(mode=…)")
    return "RGBA" if any(mode.has_alpha for mode in modes) else None


def _infer_single_mode(value: Any) -> Mode:
    """Infers the mode of one image of whole numbers with up to four channels; others must be declared."""
    array = _to_channels_last(value)
    if not 1 <= array.shape[2] <= 4 or array.dtype.name not in DTYPES or array.dtype.kind == "f":
        raise ValueError(
            f"found an image of {array.dtype} and shape {array_of(value).shape}; expected (height, width, channels) of "
            "whole numbers in 1 to 4 channels: leave out the transform that makes floats (ToTensor), or declare "
            "packstore.Image(…, mode=…)"
        )
    return mode_of(array.shape[2], array.dtype.name)


def _to_channels_last(value: Any) -> NDArray[Any]:
    """Converts the pixels of an image, array or tensor to an array ``(H, W, C)``."""
    if is_pil(value):
        from packstore.images.pillow import pixels_of_pillow

        return pixels_of_pillow(value)
    array = array_of(value)
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        expected = "(channels, height, width)" if is_tensor(value) else "(height, width, channels)"
        raise ValueError(f"found an image of shape {array.shape}; expected {expected}")
    return array.transpose(1, 2, 0) if is_tensor(value) else array


def _convert_mask(value: Any, field: Mask) -> NDArray[Any]:
    """Converts a mask to an array ``(H, W)`` of its field's dtype."""
    array = array_of(value)
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    if array.ndim != 2 or array.dtype.kind not in "iu" or not array.size:
        raise ValueError(f"found {array.dtype} of shape {array.shape}; expected integers (height, width)")
    wanted = field.dtype or mask_dtype(array)
    fitting = array.astype(wanted)
    if not np.array_equal(fitting, array):
        raise ValueError(f"found values from {array.min()} to {array.max()}, which are not all {wanted}")
    return np.ascontiguousarray(fitting)


def mask_dtype(array: NDArray[Any]) -> str:
    """Returns the dtype in which a mask is stored: uint8 for uint8 and booleans, uint16 for uint16, else int32."""
    kept = {"uint8": "uint8", "uint16": "uint16", "int32": "int32", "bool": "uint8"}
    return kept.get(array.dtype.name, "int32")


def infer_field(name: str, values: Sequence[Any]) -> Field:
    """Infers the field of a name from its values in the first samples, without None. The first value decides between
    files, texts, dicts, lists and others.

    Raises :class:`ValueError` for values that must be declared:

    - texts under a label's name;
    - texts that are paths of existing images, unless the name is one of masks;
    - unknown types, and arrays that no field holds.
    """
    value = values[0]
    known = _infer_by_type(name, value)
    if known is not None:
        return known
    if isinstance(value, (bytes, bytearray, memoryview)) or is_path(value):
        return _infer_file_field(name, value)
    if isinstance(value, str):
        if name in LABEL_NAMES:
            raise ValueError("found names of classes: declare it, with packstore.Label(classes), or as 'text'")
        if value.lower().endswith(IMAGE_SUFFIXES):
            if looks_like_mask(name):
                return Mask()
            if Path(value).is_file():
                # A text field would keep only the name, without a warning.
                raise ValueError("found the name of an image file: declare it as 'image' or 'mask', or as 'text'")
        return Text()
    if isinstance(value, Mapping):
        return Json()
    if isinstance(value, (list, tuple)):
        first = next((each for some in values for each in some), None)
        if isinstance(first, (bytes, bytearray, memoryview)) or is_path(first):
            return Images()
        try:
            arrays = [array_of(to_plain(Array("float32"), each)) for each in values]
        except ValueError:
            return Json()
        if any(array.dtype.kind not in "biuf" and array.size for array in arrays):
            return Json()
        return _infer_array_field(name, arrays, values, as_lists=True)
    try:
        arrays = [array_of(each) for each in values]
    except (ValueError, TypeError):
        arrays = []
    if not arrays or arrays[0].dtype.kind not in "biuf":
        raise ValueError(f"found {type(value).__name__}, which must be declared")
    return _infer_array_field(name, arrays, values, as_lists=False)


_IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp")


def names_an_image(name: str) -> bool:
    """Tells if a name, in any case, is usual for images (``image``, ``photo``, ``jpg``)."""
    return name.lower() in _IMAGE_NAMES


def looks_like_mask(name: str) -> bool:
    """Tells if a name in lower case contains ``mask`` or ``segmentation``."""
    return "mask" in name or "segmentation" in name


def _infer_by_type(name: str, value: Any) -> Field | None:
    """Infers the field of a Pillow image, or of a torchvision tensor with a type; None for other values."""
    if is_pil(value):
        # These modes are usual for masks, not for photos.
        numbers = value.mode in ("P", "1", "I", "I;16") and not names_an_image(name)
        return Mask() if numbers or looks_like_mask(name) else Image()
    if not type(value).__module__.startswith("torchvision.tv_tensors"):
        return None
    match type(value).__name__:
        case "Image":
            return Image()
        case "Mask" if value.ndim == 2:
            return Mask()
        case "BoundingBoxes":
            return Boxes()
        case "KeyPoints" if value.ndim in (2, 3):
            return Keypoints(points=value.shape[1] if value.ndim == 3 else None)
    return None


def _infer_file_field(name: str, value: Any) -> Field:
    """Infers the field of a file, given as path or bytes: an image, a mask, or bytes."""
    if is_path(value):
        return Mask() if looks_like_mask(name) else Image()
    # Byte 25 of a PNG is its colour type.
    start = bytes(memoryview(value)[:26])
    if not names_an_image(name) and looks_like_mask(name) and start.startswith(_PNG) and start[25:] in _MASK_COLOURS:
        return Mask()
    return Image() if names_an_image(name) or begins_like_image(start[:16]) else Bytes()


def _common_dtype(arrays: Sequence[NDArray[Any]], values: Sequence[Any]) -> str:
    """Returns a dtype that holds all ``values``, whose arrays are ``arrays``."""
    full = [(array, dtype_name(value)) for array, value in zip(arrays, values, strict=True) if array.size]
    names = {name for _, name in full} or {dtype_name(values[0])}
    if len(names) == 1:
        return names.pop()
    dtype = np.result_type(*(array.dtype for array, _ in full))
    if dtype.kind == "f" and all(array.dtype.kind in "biu" for array, _ in full):
        raise ValueError(f"found {' and '.join(sorted(names))} values, and no dtype holds all of both: declare it")
    return dtype.name


def _infer_array_field(name: str, arrays: list[NDArray[Any]], values: Sequence[Any], *, as_lists: bool) -> Field:
    """Infers the field of numbers by name, shape and dtype; ``as_lists``: the values were lists."""
    first, dtype = arrays[0], _common_dtype(arrays, arrays if as_lists else values)
    whole = all(array.dtype.kind in "iu" or not array.size for array in arrays)
    if first.ndim == 0:
        return Label() if whole and name in LABEL_NAMES else Array(dtype)
    full = next((array for array in arrays if array.size), first)
    if name in ("boxes", "bbox", "bboxes") and ((full.ndim, *full.shape[1:]) == (2, 4) or not full.size):
        return Boxes()
    if name == "labels" and ((full.ndim == 1 and full.dtype.kind in "iu") or not full.size):
        return Labels()
    if name == "keypoints" and full.ndim in (2, 3) and full.shape[-1] in (2, 3):
        return Keypoints(full.shape[-1], points=full.shape[1] if full.ndim == 3 else None)
    if looks_like_mask(name) and full.ndim == 2 and full.dtype.kind in "iub":
        return Mask()
    if names_an_image(name) and not as_lists and first.ndim >= 2:
        return Image()
    # Equal lengths of lists do not prove a fixed shape.
    if not as_lists and len({array.shape for array in arrays}) == 1:
        return Array(dtype, first.shape)
    rows = {array.shape[1:] for array in arrays if array.size}
    if len(rows) > 1 or len({array.ndim for array in arrays if array.size}) > 1:
        shapes = ", ".join(sorted({str(array.shape) for array in arrays})[:3])
        raise ValueError(f"found arrays of shapes {shapes}, which differ beyond the first dimension: keep it as 'json'")
    return Array(dtype, next(iter(rows), ()), ragged=True)


def read_file_value(value: Any, limit: int) -> bytes:
    """Returns the bytes of a file that is given by its path or bytes. Raises :class:`ValueError` for a path that cannot
    be read, is no file, or has more than ``limit`` bytes."""
    if not isinstance(value, str) and not is_path(value):
        return bytes(value)
    try:
        with os.fdopen(open_regular(Path(value)), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise ValueError(f"{printable(str(value))} has {size} bytes; an image may have {limit}")
            return file.read()
    except OSError as error:
        raise ValueError(f"{printable(str(value))} cannot be read: {error.strerror or error}") from None


def refuse_losses(data: bytes, options: EncodeOptions) -> None:
    """Raises :class:`ValueError` for an image file that would lose bits, channels or frames by encoding. A file without
    a readable header is such an error, too."""
    losses = find_losses(data, check_header(data), options.reading)
    if losses:
        raise ValueError(
            f"the file has {'; and '.join(losses.values())}. It would become {options.encoding} of mode "
            f"{options.reading.pixels}: declare the files' mode, as packstore.Image('uint16', mode='I;16') does, or "
            "keep the files as they are with packstore.Image(mode='I;16')"
        )


def refuse_odd_mask(data: bytes) -> None:
    """Raises :class:`ValueError` for a mask file other than a PNG of one channel."""
    kind = check_header(data).kind
    if kind != "png":
        raise ValueError(f"found a {kind} file; expected PNG, or an array (height, width)")
    if data[25:26] not in _MASK_COLOURS:
        raise ValueError("found a PNG in colour; expected one with a palette or in gray, or an array (height, width)")
