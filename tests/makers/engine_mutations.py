"""Faults put into the engine's source, one at a time, each of which its tests have to find."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT

SOURCE = ROOT / "packstore" / "images" / "engine"
FUZZER = ROOT / "tests" / "makers" / "engine_fuzz.c"
_COMMON = ("-O1", "-ffp-contract=off")
_KINDS = {
    "library": (*_COMMON, "-fPIC", "-fvisibility=hidden"),
    "fuzzer": (*_COMMON, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}
_TIMEOUT_SECONDS = 300
_CHECKS = """
import sys
from packstore.core.compiled import load_library
from packstore.images.engine import Engine
from tests.makers.engine_checks import check_all
for vectors in (True, False):
    check_all(Engine(load_library(sys.argv[1]), vectors))
"""


class Mutation(NamedTuple):
    """``old``, which is in ``file`` once, becomes ``new``."""

    file: str
    old: str
    new: str


class Builds:
    """The engine as it is, compiled once; of a changed one only what changed is compiled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for kind, flags in _KINDS.items():
            for source in [*SOURCE.rglob("*.c"), FUZZER]:
                _compile(*flags, "-c", source, "-o", folder / f"{kind}-{source.stem}.o")

    def is_found(self, mutation: Mutation | None, folder: Path, seeds: list[Path]) -> bool:
        """Whether the checks of every engine, or else the sanitizers with mutated files, find the fault.

        Args:
            mutation: The fault; None for none, which nothing may find.
            folder: Where the changed source is compiled.
            seeds: Files that the fuzzer changes.
        """
        changed = [] if mutation is None else self._write(mutation, folder)
        library = self._link("library", changed, folder, "-shared")
        if _fails(sys.executable, "-c", _CHECKS, library):
            return True
        return _fails(self._link("fuzzer", changed, folder), 100_000, 1, *seeds)

    def _write(self, mutation: Mutation, folder: Path) -> list[Path]:
        """The changed source in ``folder``, and which of its files are to be compiled."""
        copy = folder / "source"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("*.so", "*.py", "__pycache__"))
        changed = copy / mutation.file
        text = changed.read_text()
        assert text.count(mutation.old) == 1
        changed.write_text(text.replace(mutation.old, mutation.new))
        return [changed] if changed.suffix == ".c" else sorted(copy.rglob("*.c"))

    def _link(self, kind: str, changed: list[Path], folder: Path, *flags: str) -> Path:
        objects = {path.name: path for path in self._folder.glob(f"{kind}-*.o")}
        if kind == "library":
            del objects[f"{kind}-{FUZZER.stem}.o"]
        for source in changed:
            name = f"{kind}-{source.stem}.o"
            _compile(*_KINDS[kind], "-c", source, "-o", folder / name)
            objects[name] = folder / name
        made = folder / kind
        _compile(*_KINDS[kind], *flags, *objects.values(), "-o", made)
        return made


def _compile(*arguments: object) -> None:
    subprocess.run(["gcc", "-std=gnu11", "-w", *map(str, arguments)], check=True, capture_output=True)


def _fails(*command: object) -> bool:
    try:
        done = subprocess.run(
            [*map(str, command)], cwd=ROOT, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


MUTATIONS = [
    # Headers: B.2
    Mutation(
        "jpeg/headers.c",
        "headers->quantisation[at[0]][natural_place[1 + k]] = at[1 + k]",
        "headers->quantisation[at[0]][k] = at[1 + k]",
    ),
    Mutation("jpeg/headers.c", "if (at[0] >= TABLES)", "if (at[0] > TABLES)"),
    Mutation("jpeg/headers.c", "if (kind > 1 || number >= TABLES)", "if (kind > 1)"),
    Mutation(
        "jpeg/headers.c", "reading->has_frame || end - at < 6 || at[0] != 8", "reading->has_frame || end - at < 6"
    ),
    Mutation("jpeg/headers.c", "reading->has_frame || end - at < 6 || at[0] != 8", "end - at < 6 || at[0] != 8"),
    Mutation("jpeg/headers.c", "if (headers->component[other].id == component->id)", "if (0)"),
    Mutation("jpeg/headers.c", "end[-3] != 0 ||", ""),
    Mutation("jpeg/headers.c", "end[-2] != 63 ||", ""),
    Mutation("jpeg/headers.c", "|| end[-1] != 0)", ")"),
    Mutation("jpeg/headers.c", "if (at[1 + 2 * i] != component->id || component", "if (component"),
    Mutation("jpeg/headers.c", "!headers->ac[component->ac].counts ||", ""),
    Mutation("jpeg/headers.c", "reading->adobe_transform == 1", "reading->adobe_transform == 2"),
    Mutation("jpeg/headers.c", "if (headers->component[i].id != i + 1)", "if (0)"),
    Mutation("jpeg/headers.c", "if (end - at < 14 || at[5] != 1)", "if (end - at < 14)"),
    Mutation("jpeg/headers.c", "component[i].h > most", "component[i].h > (i ? 1 : 4)"),
    Mutation("jpeg/headers.c", "int most = i ? 1 : 2;", "int most = i ? 4 : 2;"),
    Mutation("jpeg/headers.c", "length > nbytes - at - 2)", "0)"),
    # Entropy decoding: C.2 and F.2.2
    Mutation("jpeg/tables.c", "bits < 1u << size >> 1 ?", "bits <= 1u << size >> 1 ?"),
    Mutation("jpeg/tables.c", "code >= (1 << length) - 1", "code >= (1 << length)"),
    Mutation("jpeg/tables.c", "symbol > DC_BITS", "symbol > 15"),
    Mutation("jpeg/tables.c", "size > AC_BITS", "size > 15"),
    Mutation("jpeg/entropy.c", "lane->cut_short ? at <= lane->end : at == lane->end", "at <= lane->end"),
    Mutation("jpeg/entropy.c", "if (!marker || marker[1] != expected)", "if (!marker)"),
    Mutation("jpeg/entropy.c", "(k > 64 && k <= END_OF_BLOCK) || k >= NO_CODE", "k >= NO_CODE"),
    Mutation("jpeg/entropy.c", "(k > 64 && k <= END_OF_BLOCK) || k >= NO_CODE", "k > 64 && k <= END_OF_BLOCK"),
    Mutation("jpeg/entropy.c", "step < 57 / LOOKUP_BITS", "step < 7"),
    Mutation("jpeg/entropy.c", "        lane->mcu += lane->count;\n", ""),
    Mutation("jpeg/entropy.c", "    memset(lane->predicted, 0, sizeof lane->predicted);\n", ""),
    Mutation("jpeg/entropy.c", "        clear_all(&decoder->input);", "        ;"),
    Mutation("jpeg/entropy.c", "            *out++ = 0xFF;\n", "            ;\n"),
    Mutation(
        "jpeg/tables.c",
        "length <= 16; length++)\n            if ((int32_t)",
        "length < 16; length++)\n            if ((int32_t)",
    ),
    Mutation("jpeg/entropy.c", "hot->taken & 0xFF07", "hot->taken & 0xFF00"),
    Mutation("jpeg/entropy.c", "~(uint32_t)0xF8", "~(uint32_t)0xFF"),
    # Two images at a time
    Mutation("jpeg/entropy.c", "if (team->lanes[i]->decoder != decoder)", "if (0)"),
    Mutation("jpeg/entropy.c", "if (team->lanes[i]->decoder != decoder)", "if (1)"),
    Mutation("jpeg/entropy.c", "team->lanes[ended] = team->lanes[--team->count];", "--team->count;"),
    Mutation("jpeg/entropy.c", "lane->outcome == NO_MORE ? DONE : REFUSED", "DONE"),
    Mutation(
        "jpeg/entropy.c", "        end_lane(lanes[i], &hot[i]);\n    lanes[stopped]", "        ;\n    lanes[stopped]"
    ),
    Mutation("jpeg/entropy.c", "decoder->input.lanes[alone == decoder->input.lanes]", "decoder->input.lanes[0]"),
    Mutation("answer.c", "decoder->output.task.request ? decoder->second : decoder;", "decoder;"),
    Mutation("answer.c", ".refused = &refused[next]", ".refused = &refused[0]"),
    Mutation(
        "answer.c",
        "if (outcome != DONE)\n        return begin_again",
        "if (0)\n        return begin_again",
    ),
    # The seek index
    Mutation(
        "jpeg/checkpoints.c",
        "possible && read_4(at + CRC_AT) == checkpoints_crc(decoder, at, size, nbytes)",
        "possible",
    ),
    Mutation("jpeg/checkpoints.c", "bit + fields.width > fields.end", "0"),
    Mutation("jpeg/checkpoints.c", "position > end || is_wide(predicted)", "is_wide(predicted)"),
    Mutation("jpeg/checkpoints.c", "marker[0] != 0xFF || marker[1] != expected", "marker[0] != 0xFF"),
    Mutation("jpeg/checkpoints.c", "        if (marker)\n            memset(predicted, 0, sizeof predicted);\n", ""),
    Mutation(
        "jpeg/checkpoints.c",
        "points[mcu].bit = 8 * (at - file) + (points[mcu].bit & 7);",
        "points[mcu].bit += 8 * base;",
    ),
    Mutation("jpeg/checkpoints.c", "byte = byte < last ? byte : last;\n    return", "return"),
    Mutation("jpeg/entropy.c", "return same && read ==", "return read =="),
    Mutation(
        "jpeg/entropy.c", "input.lengths.at ? sizeof part->next[0] : sizeof part->next", "input.lengths.at ? 0 : 12"
    ),
    Mutation("jpeg/entropy.c", "length == lengths->unknown)", "0)"),
    Mutation("jpeg/entropy.c", "        hot->out += 64 * (blocks - luma);\n", ""),
    Mutation("jpeg/checkpoints.c", "decoder->output.blocks == decoder->input.headers.blocks", "0"),
    Mutation("jpeg/checkpoints.c", "tail[0] > MOST_WIDTH", "0"),
    Mutation("jpeg/pixels.c", "        input->lengths.at = NULL;\n", "        ;\n"),
    Mutation("jpeg/skip.c", "(k > 64 && k <= END_OF_BLOCK) || k >= NO_CODE)) {", "0)) {"),
    Mutation("jpeg/skip.c", "if (entry & ESCAPE || taken + length > SKIP_BITS)", "if (entry & ESCAPE)"),
    Mutation("answer.c", "        return begin_again(decoder, team);", "        return REFUSED;"),
    Mutation("answer.c", "    decoder->output.task.without_index = true;\n", ""),
    # Samples and pixels: A.3.3, jdsample.c, jdcolor.c
    Mutation("jpeg/idct.c", "if (UNLIKELY(!_mm256_testz_si256(wrong, wrong)))", "if (0)"),
    Mutation("jpeg/idct.c", "dc <= -MOST_PREDICTED", "dc < -MOST_PREDICTED"),
    Mutation("jpeg/idct.c", "0,  8,  32, 16, 40,", "0,  8,  32, 40, 16,"),
    Mutation("jpeg/idct.c", "_mm256_permute2x128_si256(upper, lower, 0x31);\n    upper", "upper;\n    upper"),
    Mutation("jpeg/idct.c", "int t2 = z1 - v6 * 15137", "int t2 = z1 - v6 * 15136"),
    Mutation("jpeg/idct.c", "pairs(4433 + 6270, 4433)", "pairs(4434 + 6270, 4433)"),
    Mutation("jpeg/idct.c", "((dc * quantisation * 4 + 16) >> 5)", "((dc * quantisation * 4 + 15) >> 5)"),
    Mutation("jpeg/colours.c", "_mm256_set1_epi16(26345)", "_mm256_set1_epi16(26330)"),
    Mutation("jpeg/colours.c", "EACH_HALF(10, 5, 0, 11,", "EACH_HALF(10, 5, 11, 0,"),
    Mutation("jpeg/colours.c", "(91881 * red + 32768)", "(91900 * red + 32768)"),
    Mutation("jpeg/colours.c", "for (; i + 6 <= pixels; i += 5)", "for (; i + 5 <= pixels; i += 5)"),
    Mutation("jpeg/colours.c", "for (; i + 32 <= count; i += 32)", "for (; i < count; i += 32)"),
    Mutation("jpeg/colours.c", "    to[-1] = to[0];\n    to[count] = to[count - 1];\n}\nBOTH", "}\nBOTH"),
    Mutation("jpeg/pixels.c", "if (columns <= 2)", "if (columns <= 1)"),
    Mutation(
        "jpeg/pixels.c",
        "v == 2 ? 7 : 2",
        "v == 2 ? 8 : 2",
    ),
    Mutation("jpeg/pixels.c", "y & 1 ? 2 : 1", "y & 1 ? 1 : 2"),
    Mutation("jpeg/pixels.c", "smaller(near + 1, rows - 1)", "near + 1"),
    Mutation("jpeg/pixels.c", "int64_t above = !gray && headers->mcu_height > 8,", "int64_t above = 0,"),
    Mutation("jpeg/pixels.c", "beside = !gray && headers->mcu_width > 8;", "beside = 0;"),
    # Rows that become pixels while others are decoded
    Mutation("jpeg/entropy.c", ">= output->whole + output->kept - 1)", ">= output->whole + output->kept)"),
    Mutation("jpeg/entropy.c", "            decoder->output.held = false;\n            lane", "            lane"),
    Mutation("jpeg/pixels.c", "* headers->mcu_height - mixed;", "* headers->mcu_height;"),
    Mutation("jpeg/pixels.c", "!in_order && output->kept < rows + 1", "0"),
    Mutation(
        "jpeg/pixels.c", "while (output->whole < rows && !missing[output->whole])", "while (output->whole < rows)"
    ),
    Mutation("jpeg/pixels.c", "stop = stop < output->column1 ? stop : output->column1;", ";"),
    Mutation("jpeg/idct.c", "(row & (output->kept - 1)) * component->v", "row * component->v"),
    # Gray
    Mutation("jpeg/entropy.c", "if (input->unread != unread && input->unread)", "if (0)"),
    Mutation("jpeg/entropy.c", "(size_t)used * block", "(size_t)(used - 1) * block"),
    Mutation("jpeg/pixels.c", "b = plane_row(decoder, 0, y + count - 1) + left;", "b = a;"),
    Mutation(
        "jpeg/pixels.c",
        "decoder->worker.kernels->mirror(to, a, box->width, channels);",
        "memcpy(to, a, (size_t)box->width);",
    ),
    Mutation("jpeg/colours.c", "_mm_setr_epi8(15, 14,", "_mm_setr_epi8(14, 15,"),
    Mutation("shape/resize.c", "_mm256_permute4x64_epi64(sums, 0xD8)", "sums"),
    Mutation(
        "shape/resize.c",
        "_mm256_broadcastq_epi64(LOAD_8(weights + j));",
        "_mm256_setzero_si256();",
    ),
    Mutation("answer.c", "(form->from != UINT8 || decoder->output.task.channels != 3)", "form->from != UINT8"),
    # Resizing
    Mutation("shape/resize.c", "if (at + down->taps > y && y", "if (at + down->taps > y + 1 && y"),
    Mutation("shape/resize.c", "        resizing->first = first;\n", ""),
    Mutation(
        "shape/resize.c",
        "sum += whole_weight(taps, weights + j) * from[j * stride + x];",
        "sum += whole_weight(taps, weights + j) * from[x];",
    ),
    Mutation("shape/taps.c", "wide ? WEIGHT_BITS : precision_of(largest);", "wide ? WEIGHT_BITS : 14;"),
    Mutation("shape/taps.c", "(3 - 4 * sine * sine) / (3 * square)", "(3 - 4 * sine * sine) / (2.9 * square)"),
    Mutation("shape/taps.c", "at[taps->low_at] = (int16_t)(rounded", "at[taps->low_at] = (int16_t)(0 & rounded"),
    Mutation("shape/resize.c", "sum = _mm256_add_epi32(sum, _mm256_slli_epi32(high, LOW_BITS));", "sum = high;"),
    Mutation("shape/taps.c", "int64_t to = mirrored ? count - 1 - i : i;", "int64_t to = i;"),
    # Types and layouts
    Mutation("shape/convert.c", "if (bits >= 0x47800000)", "if (bits >= 0x7F800000)"),
    Mutation("shape/convert.c", "if (bits < 0x38800000)", "if (bits < 0x38000000)"),
    Mutation("shape/convert.c", "bits += 0xC8000FFF + (bits >> 13 & 1);", "bits += 0xC8000FFF;"),
    Mutation(
        "shape/convert.c", "value = (float)(half & 0x3FF) * 0x1p-24f;", "value = (float)(half & 0x1FF) * 0x1p-24f;"
    ),
    Mutation("shape/convert.c", "(bits + 0x7FFF + (bits >> 16 & 1)) >> 16", "(bits + 0x8000) >> 16"),
    Mutation("shape/convert.c", "_mm256_set1_epi32(0x7FFF)", "_mm256_set1_epi32(0x8000)"),
    Mutation("shape/convert.c", "_mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))", "_mm256_set1_epi32(0x7FFF)"),
    Mutation(
        "shape/convert.c",
        "factors[3 + i % 3];\n    }\n    int64_t at = 0;",
        "factors[3 + i / 8];\n    }\n    int64_t at = 0;",
    ),
    Mutation("shape/convert.c", "for (; at + 24 <= count; at += 24)", "for (; at + 12 <= count; at += 24)"),
    Mutation("shape/convert.c", "at = at + 32 <= pixels ? at : pixels - 32;", ""),
    Mutation("shape/convert.c", "if (pixels < 32)", "if (pixels < 0)"),
    Mutation("shape/convert.c", "remainder[(c + 2) % 3]", "remainder[(c + 1) % 3]"),
    Mutation("shape/convert.c", "joined[3 * i + c] = line[i];", "joined[3 * i + c] = line[0];"),
    Mutation("shape/convert.c", "source + (c * pixels + at) * from_size", "source + at * from_size"),
    # Windows that are cut out and padded
    Mutation("shape/place.c", "twice = padding == SYMMETRIC;", "twice = 0;"),
    Mutation("shape/place.c", "2 * last - at + twice", "2 * last - at - twice"),
    Mutation("shape/place.c", "return at < 0 ? 0 : at > last ? last : at;", "return at < 0 ? 0 : at;"),
    Mutation("shape/place.c", "from + (count - 1 - x) * size", "from + x * size"),
    Mutation(
        "shape/place.c",
        "reverse(to + (columns - stop) * size, from + (left + first) * size, count, size);",
        "reverse(to + first * size, from + (left + first) * size, count, size);",
    ),
    Mutation("shape/place.c", "stop = width - left < columns ? width - left : columns;", "stop = columns;"),
    Mutation("shape/place.c", "(mirrored ? columns - 1 - x : x) * size, place", "x * size, place"),
    Mutation("shape/place.c", "c * request->height * request->width * size", "c * request->width * size"),
    # Planes that are resized
    Mutation("shape/planes.c", "start = smaller(begin, source - width);", "start = begin;"),
    Mutation("shape/planes.c", "(float)(1.0 / (double)scale) : 1;", "1 / scale : 2;"),
    Mutation("shape/planes.c", "mirrored ? count - 1 - i : i;", "i;"),
    Mutation("shape/planes.c", "weights[j] /= total;", ";"),
    Mutation("shape/planes.c", "taps->at[i] -= (int32_t)taps->first;", ";"),
    Mutation(
        "shape/planes.c", "sum_rows_one_by_one(to + x, kind, from + x * size, stride, weights, taps, count - x);", ";"
    ),
    Mutation(
        "shape/planes.c",
        "case 5: sum_pixels_of(to, pixels, taps, 5, count); break;",
        "case 5: sum_pixels_of(to, pixels, taps, 3, count); break;",
    ),
    Mutation("shape/planes.c", "box->left + across.first;", "across.first;"),
    Mutation("shape/planes.c", "planes + (c * height * width + at) * size", "planes + (c * height + at) * size"),
    # Requests
    Mutation("answer.c", "box->top <= height - box->height &&", "box->top <= height &&"),
    Mutation("answer.c", "box->left <= width - box->width;", "box->left <= width;"),
    Mutation(
        "answer.c",
        " &&\n                    (int64_t)headers->height * headers->width <= decoder->output.task.max_pixels",
        "",
    ),
    Mutation(
        "answer.c",
        "!= decoder->output.task.channels * request->height * request->width * size_of(form->from))",
        "< 0)",
    ),
    Mutation("answer.c", "visible.height -= visible.top;", ";"),
    Mutation(
        "answer.c", "(request->mirrored ? window->width - visible.left - visible.width : visible.left)", "visible.left"
    ),
    Mutation(
        "answer.c",
        "if (!whole)\n        memset(task->to, 0,",
        "if (whole)\n        memset(task->to, 0,",
    ),
    Mutation("jpeg/pixels.c", "task->resized || mirrored ? decoder->worker", "task->resized ? decoder->worker"),
    Mutation(
        "answer.c",
        "if (!whole && !task->resized && (task->form->padding",
        "if (0 && (task->form->padding",
    ),
]

NEON_MUTATIONS = (
    Mutation("jpeg/idct.c", "ADD_PRODUCT(t2, rows[6], first, 1)", "ADD_PRODUCT(t2, rows[6], first, 0)"),
    Mutation("jpeg/idct.c", "if (UNLIKELY(vminvq_s16(wrong) < 0))", "if (0)"),
    Mutation("jpeg/idct.c", "vtrn2q_u16(first, third)", "vtrn2q_u16(third, first)"),
    Mutation("jpeg/colours.c", "vqrdmulhq_n_s16(v, 13173)", "vqrdmulhq_n_s16(v, 13160)"),
    Mutation("jpeg/colours.c", "vsubl_high_u8(cb, centre)", "vsubl_high_u8(cr, centre)"),
    Mutation(
        "shape/resize.c", "vmlal_high_s16(vmlal_s16(sum, vget_low_s16(eight), vget_low_s16(own)), eight, own)", "sum"
    ),
    Mutation(
        "shape/resize.c",
        "s16 bytes = (s16)vmovl_u8((uint8x8_t)vdup_n_u32(read_4(p + j)));",
        "s16 bytes = vdupq_n_s16(0);",
    ),
    Mutation("shape/resize.c", "u8 four = vld1q_u8(row ? q : p);", "u8 four = vld1q_u8(p);"),
    Mutation("shape/resize.c", "vst1q_u8(to + x + 16, second);", "vst1q_u8(to + x + 16, first);"),
    Mutation(
        "simd/vectors.h",
        "vqmovun_high_s16(vqmovun_s16((s16)a), (s16)b)",
        "vqmovun_high_s16(vqmovun_s16((s16)b), (s16)a)",
    ),
)
"""Faults of what is compiled for ARM alone: ``tools/arm`` looks for some of them."""
