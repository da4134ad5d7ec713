"""The crop-seekable JPEG: an ordinary file of which any part can be decoded without decoding the rest.

It is a baseline JPEG with restart markers at an interval that divides its rows of MCUs, and an index of where they are
in a segment of its own, which viewers skip. :func:`make_seekable` rewrites a file without loss, :func:`add_index`
completes one that an encoder wrote with restart markers, :func:`plan_crops` and :func:`splice` extract a part.
"""

from packstore.images.seekable.index import Index, add_index, check_index, read_index
from packstore.images.seekable.markers import FrameHeader, NotSeekableError, frame_header, segments
from packstore.images.seekable.plain import strip_index
from packstore.images.seekable.rewrite import Made, choose_interval, make_checked, make_seekable
from packstore.images.seekable.splice import CropPlan, CropPlans, plan_crop, plan_crops, splice
from packstore.images.seekable.transform import transform_version

__all__ = [
    "CropPlan",
    "CropPlans",
    "FrameHeader",
    "Index",
    "Made",
    "NotSeekableError",
    "add_index",
    "check_index",
    "choose_interval",
    "frame_header",
    "make_checked",
    "make_seekable",
    "plan_crop",
    "plan_crops",
    "read_index",
    "segments",
    "splice",
    "strip_index",
    "transform_version",
]
