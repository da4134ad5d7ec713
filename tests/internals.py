# ruff: noqa: F401
"""The internals of packstore that tests use, by name: tests name no internal module, so that modules can move.

Each name is imported on first use, so that a test loads only what it needs.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packstore.cache import files, folder
    from packstore.cache.files import compute_date_stamp
    from packstore.checking import against
    from packstore.checking import mending as repair_module
    from packstore.checking.against import count_independently, suffix_of
    from packstore.checking.audit import same
    from packstore.checking.audit.same import RecordHashes, find_nearest_before, group_equal
    from packstore.checking.repair import repair as repair_store
    from packstore.checking.verification import verify
    from packstore.cli.check import audit_rows as audit_report_rows
    from packstore.cli.common import BYTE_SIZE, LocalPath, shell_quote, suggest_commands
    from packstore.cli.compose import append_rows as append_report_rows
    from packstore.cli.compose import report_rows as merge_report_rows
    from packstore.cli.diagnose import _format_verdict
    from packstore.cli.diagnose import bench_rows as bench_report_rows
    from packstore.cli.diagnose import doctor_rows as doctor_report_rows
    from packstore.cli.info import format_column, format_linked_files, sample_keys, source_rows, store_rows
    from packstore.cli.messages import MessageHandler
    from packstore.cli.options import Command, OptionsOf
    from packstore.cli.rows import Rows, human_bytes, wrap_row
    from packstore.cli.show import format_page
    from packstore.cli.terminal import encode_kitty, encode_sixel, parse_graphics, terminal_graphics
    from packstore.core import compiled, urls
    from packstore.core import files as scratch
    from packstore.core.column_types import base
    from packstore.core.column_types.base import Field
    from packstore.core.column_types.forms import Canvas, RowClasses, RowFaults, RowMoves
    from packstore.core.column_types.numbers import ArrayType
    from packstore.core.column_types.objects import BytesType
    from packstore.core.column_types.pictures import frame
    from packstore.core.column_types.segments import parse_shapes
    from packstore.core.columns import (
        CHECKSUM,
        ITEM_SIZE,
        KEY,
        NUMPY_DTYPE,
        Buffer,
        Column,
        ColumnData,
        ImageData,
        LazyArray,
        LazyRagged,
        Ragged,
        from_stored,
        list_user_columns,
        shape_to_stored,
        to_stored,
        without_companions,
    )
    from packstore.core.compiled import load_once
    from packstore.core.errors import (
        AmbiguousSourceError,
        Answer,
        CacheError,
        CacheFullError,
        CorruptRecordError,
        DecodeError,
        DestinationError,
        DiskFullError,
        EngineError,
        ManifestError,
        MissingStoreError,
        NotInSourceError,
        PackstoreError,
        SampleError,
        SourceError,
        StoreError,
        UnknownArgumentError,
        UnreachableError,
        UsageError,
        printable,
    )
    from packstore.core.fields import Image, Label, Labels, parse_field
    from packstore.core.files import MANIFEST_FILE as STORE_MANIFEST_FILE
    from packstore.core.files import drop, open_file, reading, writing
    from packstore.core.findings import DEFAULT_DROP, list_kinds
    from packstore.core.manifest import (
        FORMAT_VERSION,
        MAX_JSON_BYTES,
        NORMALIZATIONS,
        Manifest,
        Normalization,
        Origin,
        Skipped,
        Split,
    )
    from packstore.core.modes import mode_of, parse_mode
    from packstore.core.options import argument, check_options, describes, initializes, option, takes
    from packstore.core.parallel import ordered_flat_map, ordered_map
    from packstore.core.plainjson import (
        encode_with_digest,
        load_json,
        parse_with_digest,
        sha256_json,
        to_canonical_json,
    )
    from packstore.core.progress import Progress, ProgressCallback, no_progress, progress_callback
    from packstore.core.proof import (
        ROW_CHECKSUM,
        Comparison,
        Proof,
        column_digest,
        compare_rows,
        file_digest,
        find_different_image,
        hash_values,
        join_records_digests,
        records_digest,
        row_checksum,
        row_checksums,
        row_columns,
    )
    from packstore.core.registry import COLUMN_TYPES, ENCODINGS, EXPORTS, FORMATS, SOURCES, Registry
    from packstore.core.shards import SHARD, TABLE_ROW, Shard, ShardTable, shard_name, shards_to_rows
    from packstore.core.urls import UrlPath, location, url_message
    from packstore.diagnose import doctor
    from packstore.diagnose.bench import AUGMENTS, BenchOptions
    from packstore.diagnose.bench import advice as trials
    from packstore.diagnose.bench.advice import (
        Rates,
        Trial,
        advise,
        choose_candidates,
        compute_core_seconds,
        compute_efficiency,
        count_cores_for,
        find_ceilings,
        find_limiting_stage,
    )
    from packstore.diagnose.bench.measure import Clock, EndToEnd, choose_random_records, measure_reading
    from packstore.diagnose.bench.run import (
        BenchReport,
        bench,
        compute_loader_decode_rate,
        make_augmentation,
        plot_report,
    )
    from packstore.diagnose.demo import make_demo
    from packstore.diagnose.doctor import (
        LIBRARIES,
        Fact,
        Report,
        _gpu_facts,
        _library_fact,
        _plug_in_facts,
        decoder_facts,
        examine,
        find_matching_torchvision,
        machine,
        rate_facts,
    )
    from packstore.diagnose.doctor.probes import probe
    from packstore.exports import ExportOptions, parquet, run
    from packstore.exports import archives as export_archives
    from packstore.exports import base as exports_base
    from packstore.exports import records as mds
    from packstore.exports.archives import TarWriter
    from packstore.exports.base import Export, Record
    from packstore.exports.folder import image_file
    from packstore.exports.labels import LabelsExport
    from packstore.exports.plan import ExportStaging, find_owned_files, plan_export
    from packstore.exports.records import TfdsExport
    from packstore.exports.run import export
    from packstore.images import decoders, image_files, masks, orientation, pillow
    from packstore.images.annotations import encode_run_lengths
    from packstore.images.decoders import backends
    from packstore.images.decoders.backends import load_region, turbo_version
    from packstore.images.encode import EncodedImage, EncodeOptions, Encoder, Encoding, parse_size
    from packstore.images.encode.arrays import (
        DatasetStatistics,
        cast_floats,
        normalization_tables,
        normalize,
        to_float32,
    )
    from packstore.images.encode.files import encode_jpeg, encode_png, fits_png, worst_patch
    from packstore.images.engine import Engine, augment, make_indexes
    from packstore.images.engine.requests import _FIELDS, OutputFormat, Requests, _Form
    from packstore.images.image_files import count_frames, decode, find_losses, strip_metadata
    from packstore.images.kinds import jpeg as jpeg_headers
    from packstore.images.kinds import tiff as tiff_directory
    from packstore.images.kinds.hdr import OpenExr
    from packstore.images.kinds.jp2_jxl import JpegXl
    from packstore.images.kinds.jpeg import find_pictures, is_complete_jpeg, without_metadata
    from packstore.images.kinds.png import decode_png
    from packstore.images.kinds.tiff import list_tiff_pages
    from packstore.images.masks import class_color, decode_mask, make_mask_file, read_mask_header
    from packstore.images.orientation import (
        map_to_stored_box,
        read_annotation_orientation,
        read_orientation,
        swaps_sides,
        upright,
        upright_size,
    )
    from packstore.images.perceptual import (
        CROPS,
        THRESHOLD,
        count_bits,
        hamming_distances,
        hash_windows,
        shrink_to_side,
        to_grey,
    )
    from packstore.images.pillow import parse_exif_orientation, pixels_of_pillow
    from packstore.images.programs import (
        AS_PILLOW,
        INTERPOLATIONS,
        STEP,
        WARP_FILLS,
        Code,
        Program,
        join_programs,
        new_program,
        pack_warp_flags,
        step,
        unpack_fill,
        warp_as_pillow,
    )
    from packstore.images.reading import PLAIN, Reading, convert_pixels, find_window, parse_normalization, to_display
    from packstore.images.resize import (
        FITS,
        TooLargeError,
        compute_limited_size,
        resize_centre,
        resize_to_fit,
        shrink_to_limits,
        size_by_shorter_side,
        target_size,
    )
    from packstore.images.resize import resize as resize_pixels
    from packstore.images.segment_masks import fill_segments
    from packstore.images.sniff import (
        MAX_PIXELS,
        UNREAD_BYTES,
        UNREAD_SUFFIXES,
        HeaderError,
        ImageInfo,
        begins_like_image,
        check_header,
        max_file_bytes,
        sniff,
    )
    from packstore.objects import call_interruptibly, connection, direct, get_agent_if_forked, iterate_interruptibly
    from packstore.objects.connection import parse_url
    from packstore.packing import AppendOptions, ConvertOptions, SelectOptions, append, batches, composing, conversion
    from packstore.packing import distribute as task
    from packstore.packing.append_plan import plan_append
    from packstore.packing.conversion import ConvertReport, convert
    from packstore.packing.distribute import SharedJob, SharedRun, TaskReceipt, driver, runners
    from packstore.packing.distribute.driver import Driver, PendingTasks
    from packstore.packing.distribute.runners import LocalRunner, Outcome, ProcessRunner, RayRunner
    from packstore.packing.plan import Plan, ShardCuts, ShardRule, make_plan
    from packstore.packing.run import Packed, Run, pack_shard
    from packstore.packing.where import parse_where
    from packstore.packing.writer import Writer
    from packstore.seeing import loaded, notebook, sheet
    from packstore.seeing.charts import _choose_images, check_chart, plot_store
    from packstore.seeing.drawing import (
        default_font,
        draw_record,
        draw_values,
        fit_text,
        image_size,
        list_drawable_columns,
        make_image_reader,
        make_thumbnail,
        read_drawn_values,
        text_color_on,
    )
    from packstore.seeing.facts import find_parts_within, sort_by_key, spread_local_records
    from packstore.seeing.loaded import OPERATIONS as AUGMENT_TEXT_OPERATIONS
    from packstore.seeing.loaded import LoadRequest, SampleLoader, list_operation_names, parse_augment
    from packstore.seeing.sheet import CellMaker, choose_rows, draw_page, write_sheet
    from packstore.seeing.sheet_options import SheetOptions
    from packstore.seeing.view import images, site
    from packstore.seeing.view.app import make_app
    from packstore.seeing.view.images import BrowserImages
    from packstore.seeing.view.query import count_classes
    from packstore.seeing.view.record import describe_record
    from packstore.seeing.view.serve import serve_page
    from packstore.seeing.view.server import Guard, Server
    from packstore.seeing.view.site import Site, read_findings
    from packstore.sources import answers, archives, folder_names, inflating, remote, tree
    from packstore.sources.annotation_formats import beside
    from packstore.sources.annotation_formats.parsing import load_xml
    from packstore.sources.annotation_formats.shapes import Parts, Picture, box
    from packstore.sources.annotation_formats.source import AnnotatedSource
    from packstore.sources.annotation_formats.voc import CLASSES as VOC_CLASSES
    from packstore.sources.annotation_formats.voc import FORMAT, VocSource
    from packstore.sources.annotations import find_all_annotations
    from packstore.sources.archives import cache_trees, open_tree
    from packstore.sources.archives.tar import TAR_FAULTS, OpenTar, read_first_names, read_tar
    from packstore.sources.archives.zip import CENTRAL, END, LOCAL, read_zip
    from packstore.sources.arrays import published, stored
    from packstore.sources.arrays.chunked import _Hdf5Array
    from packstore.sources.arrays.files import MatSource, NpzSource
    from packstore.sources.arrays.idx import IdxSource
    from packstore.sources.arrays.pickles import BatchError, build_array, parse_dict
    from packstore.sources.arrays.published import LAYOUTS, Cifar10Source
    from packstore.sources.base import Entry, Sample, SourceOptions, round_up_size
    from packstore.sources.beside import find_file
    from packstore.sources.boxes import CONVENTIONS, BoxConventionCounter, to_corners
    from packstore.sources.bridges.guard import restrict_library
    from packstore.sources.captions import CaptionsSource
    from packstore.sources.coco import CocoSource
    from packstore.sources.companion_patterns import parse_pattern
    from packstore.sources.dataset import StreamSource
    from packstore.sources.encodings import to_utf8, try_utf8
    from packstore.sources.exported import ExportedFiles
    from packstore.sources.flat import FlatSource, LabelledSource
    from packstore.sources.folder import FolderSource
    from packstore.sources.folder_names import NameCache, Names, list_directory_names
    from packstore.sources.found import Files, Found, FoundSource
    from packstore.sources.geotiff import read_geotiff
    from packstore.sources.huggingface import read_features, tables
    from packstore.sources.huggingface.columns import TableFacts, declare_columns
    from packstore.sources.huggingface.imagefolder import open_image_folder
    from packstore.sources.huggingface.splits import find_splits_of_folder
    from packstore.sources.ignoring import (
        IGNORED,
        active_rules,
        apply_ignore_rules,
        compile_ignore_rules,
        ignore_paths,
        is_ignored,
    )
    from packstore.sources.ledger import Claims, Role, suffix_for_count
    from packstore.sources.listing import IMAGE_SUFFIXES, NO_FILE, SYSTEM_NAMES, Listing
    from packstore.sources.lmdbs import parse_datum
    from packstore.sources.medical.dicom import DicomSource
    from packstore.sources.medical.dicom_files import read_header as read_dicom_header
    from packstore.sources.medical.nifti import NiftiSource
    from packstore.sources.named.mat import load_mat
    from packstore.sources.named.published import CLASSES as PUBLISHED_CLASSES
    from packstore.sources.named.published import MASKS, PAIRS
    from packstore.sources.needs import NEEDS, PresentNames
    from packstore.sources.recognition import recognise
    from packstore.sources.records.beton import BetonSource
    from packstore.sources.records.litdata import LitdataSource
    from packstore.sources.records.mds import MdsSource
    from packstore.sources.records.recordio import LONGEST, MAGIC, RecordioSource
    from packstore.sources.records.recordio import frame_record as recordio_frame_record
    from packstore.sources.records.tfds import TfdsSource
    from packstore.sources.records.tfrecord import TfrecordSource
    from packstore.sources.records.wire import frame_record as tfrecord_frame_record
    from packstore.sources.records.wire import masked_crc32c, write_example
    from packstore.sources.rows import InTree, RowSource
    from packstore.sources.schema import make_schema
    from packstore.sources.sidecars import is_words
    from packstore.sources.splits import (
        SPLIT_ORDER,
        check_splits,
        find_meanings,
        find_split,
        find_split_folders,
        find_split_in_path,
        find_split_of_file,
        find_splits_of_folders,
        is_split_value,
        lower_known_split,
    )
    from packstore.sources.store import StoreSource
    from packstore.sources.table.boxes import convert_runs
    from packstore.sources.tree import FolderTree
    from packstore.sources.webdataset import WebDatasetSource
    from packstore.sources.yamltext import is_yaml_bool, is_yaml_null, load_yaml, parse_yaml_int
    from packstore.sources.yolo import YoloSource, layout
    from packstore.stores import Problem, Reader, proven
    from packstore.stores import folder as sharded
    from packstore.stores import keys as store_keys
    from packstore.stores import remote_objects as copies
    from packstore.stores import scavenge as manifest_recovery
    from packstore.stores.assembly import write_manifest_and_table
    from packstore.stores.build import StoreBuilder
    from packstore.stores.export_manifest import MANIFEST_FILE as EXPORT_MANIFEST_FILE
    from packstore.stores.folder import Shards
    from packstore.stores.format import FileWriter, Format, encode_manifest, parse_manifest
    from packstore.stores.hdf5 import store as hdf5_store
    from packstore.stores.hdf5.file import hash_lookup3
    from packstore.stores.linked import list_linked_files
    from packstore.stores.lmdb import writer
    from packstore.stores.lmdb.pages import Pages, RecordLookup, TreeEntry
    from packstore.stores.lmdb.store import HEADER_BYTES, read_npy_header
    from packstore.stores.opening import read_manifest
    from packstore.stores.parts import MappedPart, Part, check_offsets, read_ahead
    from packstore.stores.places import local as builder_publish
    from packstore.stores.places import local as growth
    from packstore.stores.places import local as local_place
    from packstore.stores.places import place_of
    from packstore.stores.places import remote as remote_publish
    from packstore.stores.places import resuming as journal
    from packstore.stores.places import work as work_directory
    from packstore.stores.places.leftovers import (
        GRACE_SECONDS,
        find_leftovers,
        find_unneeded,
        remove_leftover,
        remove_unneeded,
    )
    from packstore.stores.places.local import Staging, check_destination
    from packstore.stores.places.owned import NotAStoreError
    from packstore.stores.places.receipts import read_receipt
    from packstore.stores.places.remote import LostRaceError, create_version, make_upload_folder, upload_store
    from packstore.stores.places.work import (
        COLUMNS,
        RECEIPT,
        STORE,
        Owner,
        WorkDirectory,
        is_held,
        list_runs,
        read_owner,
        work_path,
    )
    from packstore.stores.proven import ARRAY_SHARE, Proven, SparinglyProven
    from packstore.stores.pth import zip
    from packstore.stores.pth.pickle_machine import PickleError
    from packstore.stores.pth.store import Tensor, dump_dict, unpickle
    from packstore.stores.pth.zip import build_headers
    from packstore.stores.records import OneFile, Records, disk_bytes
    from packstore.stores.remote_objects import (
        SHARDS,
        find_newest_version,
        parse_version_number,
        read_head,
        shard_object_name,
        shard_object_names,
        table_name,
        version_name,
    )
    from packstore.stores.remote_shards import RemoteShards
    from packstore.stores.scavenge import correct_manifest, find_manifest, list_array_sizes, view_column
    from packstore.stores.staged_columns import ColumnSpool, OffsetSpool, map_consecutive_images
    from packstore.training import arguments, permutation, worker_memory
    from packstore.training.arguments import unknown_argument, unknown_operation_argument
    from packstore.training.augment import crop, resample
    from packstore.training.augment.base import (
        SAMPLINGS,
        Crops,
        GeometricOperation,
        Operation,
        Size,
        Units,
        check_padding,
    )
    from packstore.training.augment.crop import source_index
    from packstore.training.augment.cut import Cut, write_crop
    from packstore.training.augment.interpreter import run_by_torch, run_program
    from packstore.training.augment.operations import (
        apply_operations,
        output_size,
        plan_each,
        plan_operations,
        split_operations,
    )
    from packstore.training.augment.per_image import ThreadGenerator
    from packstore.training.augment.policies import write_steps
    from packstore.training.augment.resample import crop_and_resize_each, resize_by_products, resize_shown
    from packstore.training.augment.resample import resize as resample_images
    from packstore.training.augment.sizes import BatchBoxes
    from packstore.training.augment.steps import as_operations, check_target_options, check_targets
    from packstore.training.augment.targets import (
        Move,
        Placement,
        place_boxes,
        place_mask,
        place_points,
        plan_targets,
    )
    from packstore.training.augment.timm_policies import OPERATIONS as TIMM_OPERATIONS
    from packstore.training.augment.timm_policies import Magnitudes as TimmMagnitudes
    from packstore.training.augment.unequal import DrawnOperations
    from packstore.training.augment.views import View, parse_views
    from packstore.training.augment.warps import inverse_affine, inverse_rotation
    from packstore.training.coco_masks import coco_masks
    from packstore.training.cost import Cost, compute_costs
    from packstore.training.dataset import PackedDataset, open_checked
    from packstore.training.items import Item
    from packstore.training.lanes import ShardReads, group_by_shard, max_bytes_needed
    from packstore.training.loader import Padded
    from packstore.training.loader import streaming as planning
    from packstore.training.loader.assembler import Assembler, BatchGroup
    from packstore.training.loader.batch_plan import ChecksumPolicy
    from packstore.training.loader.device_steps import MIXING_STREAM
    from packstore.training.loader.division import free_memory
    from packstore.training.loader.looks import DrawnLook, Look, RowFormat
    from packstore.training.loader.normalizer import Normalizer
    from packstore.training.loader.shards_ahead import ShardsAhead
    from packstore.training.loader.streaming import BatchJob, group_batches
    from packstore.training.mixture import FetchedShards, Mixture, apportion
    from packstore.training.order import Order
    from packstore.training.permutation import MAX_LENGTH, permute, permute_within
    from packstore.training.pictures import ImageReader
    from packstore.training.planned_images import PlannedImage, find_order, plan_pixels
    from packstore.training.planned_transforms import call_transform, has_steps, is_like_pillow
    from packstore.training.random_draws import MASK, Draws, beta, derive_key, dirichlet, log_uniform, mix_bits, uniform
    from packstore.training.ring import (
        CudaTransport,
        HostTransport,
        Ring,
        find_tensors,
        transport_to,
    )
    from packstore.training.single_threaded import make_single_threaded, single_threaded
    from packstore.training.values import as_numpy
    from packstore.training.worker_memory import allocate, send_by_value, share

HOMES = {
    alias.asname or alias.name: (node.module or "", alias.name)
    for node in ast.walk(ast.parse(Path(__file__).read_text("utf-8")))
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("packstore.")
    for alias in node.names
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(name)
    module, attribute = HOMES[name]
    home = import_module(module)
    # An attribute of a package may be one of its modules, which nothing has imported yet.
    return getattr(home, attribute) if hasattr(home, attribute) else import_module(f"{module}.{attribute}")
