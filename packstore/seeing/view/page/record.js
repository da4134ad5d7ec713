// One record: its image with layers over it, all its columns, and the same record as a loader gives it.
import { folded } from "/folded.js";
import { $, ask, bytes, className, copy, go, make, number, recordNumber, selection, state, store } from "/page.js";

const MOST_COMPARED = 100;  // names that one more keeps clear of
const PRESETS = [
  ["as it is", ""],
  ["crop and flip, as for ImageNet", "RandomResizedCrop(224), RandomHorizontalFlip()"],
  ["evaluation, as for ImageNet", "Resize(256), CenterCrop(224)"],
  ["padded crop and flip, as for CIFAR", "RandomCrop(32, padding=4), RandomHorizontalFlip()"],
];

let abort = null;
let place = null;
let known = new Map();
let shown = "";
let layers = [];

// The colour of a class, as packstore/images/masks.py computes it for masks: from hue, saturation and value.
function color(n) {
  const hue = ((n * 0.618033988749895) % 1) * 6;
  const saturation = Math.floor(n / 8) % 2 ? 0.6 : 0.85;
  const value = Math.floor(n / 16) % 2 ? 0.8 : 1;
  const part = (at) => {
    const k = (at + hue) % 6;
    return Math.round(255 * value * (1 - saturation * Math.max(0, Math.min(k, 4 - k, 1))));
  };
  return [part(5), part(3), part(1)];
}

const rgb = (parts) => `rgb(${parts.join(" ")})`;
// Black or white, whichever has more contrast on a colour, as packstore/seeing/drawing.py chooses it.
const onTop = (parts) => {
  const [red, green, blue] = parts.map((n) => (n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
};

// Shows a record, and beside it a second one if the address names one.
export async function showRecord(record, grid) {
  const box = $("record-view");
  abort?.abort();
  abort = new AbortController();
  const signal = abort.signal;
  const beside = state().get("beside");
  const records = beside === null ? [record] : [record, beside];
  const again = shown === records.join() && box.childElementCount;
  shown = records.join();
  if (!again) {
    box.replaceChildren(bar(records, grid), make("p", { class: "empty" }, "…"));
    known = new Map();
  }
  try {
    box.classList.add("waiting");
    const asked = loaderState();
    const sides = await Promise.all(records.map((each) => look(each, asked, signal)));
    box.classList.remove("waiting");
    const scrolled = again ? [...box.querySelectorAll(".side")].map((side) => side.scrollTop) : [];
    box.replaceChildren(bar(records, grid), content(sides, asked));
    box.querySelectorAll(".side").forEach((side, i) => { side.scrollTop = scrolled[i] ?? 0; });
    box.setAttribute("tabindex", "-1");
    if (!box.contains(document.activeElement)) box.focus({ preventScroll: true });
    await findPlace(record, grid, signal);
  } catch (error) {
    if (error.name !== "AbortError") box.replaceChildren(bar(records, grid), make("p", { class: "empty", role: "alert" }, error.message));
  }
}

// All that is shown of a record: what the store holds, and what the loader gives or why it does not.
async function look(record, asked, signal) {
  const about = known.get(record) ?? await ask(`/api/record/${encodeURIComponent(record)}`, { signal });
  known.set(record, about);
  if (!asked) return { about, loaded: null, problem: null };
  try {
    return { about, loaded: await ask(`/api/loaded/${encodeURIComponent(record)}?${asked}`, { signal }), problem: null };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { about, loaded: null, problem: error.message };
  }
}

// Where the record stands among those of the grid: for the buttons that go to its neighbours. Counts as records do.
async function findPlace(record, grid, signal) {
  const row = grid.row(grid.current);
  let count = grid.count;
  if (row && String(row.record) === String(record)) place = grid.current;
  else ({ place, count } = await ask(`/api/place/${record}?${selection()}`, { signal }));
  $("before").disabled = place === null || place <= 0;
  $("after").disabled = place === null || place >= count - 1;
  const here = place === Number(record) ? "" : `place ${number(place ?? 0)} `;
  const all = count === store.records ? "" : " chosen";
  $("place").textContent = place === null ? "not among the chosen records" : `${here}of 0 to ${number(count - 1)}${all}`;
}

async function step(by, grid) {
  if (place === null) return;
  const next = place + by;
  const row = await grid.recordAt(next);
  if (!row) return;
  grid.current = next;
  go({ at: next || null }, { replace: true });
  go({ record: row.record, beside: null });
}

export function recordKeys(key, grid) {
  if (key === "ArrowLeft" || key === "k") step(-1, grid);
  else if (key === "ArrowRight" || key === "j") step(1, grid);
  else if (key === "a") go({ loader: state().get("loader") === "1" ? null : "1" });
  else if (/^[1-9]$/.test(key) && layers[key - 1]) turnLayer(layers[key - 1]);
  else return false;
  return true;
}

function bar(records, grid) {
  const title = records.map((record, i) => `${i ? "record" : "Record"} ${recordNumber(record)}`).join(" beside ");
  return make("div", { class: "bar" },
    make("button", { type: "button", onclick: () => go({ record: null, beside: null }) }, "← Grid"),
    make("span", { class: "title" }, title, " ", make("span", { id: "place", class: "quiet", title: "Counted from 0, as in Python" })),
    records.length > 1 ? make("button", { type: "button", onclick: () => go({ beside: null }) }, "Close the second") : null,
    make("button", { type: "button", id: "before", "aria-label": "Record before", onclick: () => step(-1, grid) }, "‹ Before"),
    make("button", { type: "button", id: "after", "aria-label": "Record after", onclick: () => step(1, grid) }, "After ›"));
}

// An address that differs from this one by `changes`.
function link(text, changes) {
  const next = state();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) next.delete(key);
    else next.set(key, value);
  }
  return make("a", { href: `#${next}` }, text);
}

function loaderState() {
  const now = state();
  if (now.get("loader") !== "1") return null;
  const asked = new URLSearchParams();
  for (const name of ["augment", "seed", "epoch"]) asked.set(name, now.get(name) ?? (name === "augment" ? "" : "0"));
  return asked;
}

function content(sides, asked) {
  layers = [];
  if (sides.length === 1) {
    const [{ about, loaded, problem }] = sides;
    return make("div", { class: "record" }, make("div", { class: "side" }, pictures(sides[0], asked)),
      make("div", { class: "side" }, damagePanel(about), loaderPanel(loaded, problem), facts(about), columnsPanel(about),
        exifPanel(about), codePanel(about, loaded)));
  }
  return make("div", { class: "record two" }, sides.map((side, i) => make("div", { class: "side" },
    make("h2", {}, link(`Record ${number(side.about.record)}`, { record: side.about.record, beside: null }), " ",
      make("span", { class: "quiet" }, [side.about.split, classOf(side.about)].filter(Boolean).join(", "))),
    pictures(side, asked), damagePanel(side.about), facts(side.about), columnsPanel(side.about),
    i === 0 ? loaderPanel(side.loaded, side.problem) : null)));
}

function classOf(about) {
  const column = about.columns.find((c) => c.name === store.classes?.column);
  return Number.isInteger(column?.value) ? className(column.value) : null;
}

function pictures({ about, loaded, problem }, asked) {
  const given = (c) => (loaded ? loaded.columns.find((other) => other.name === c.name) : c);
  const drawn = about.columns.map(given).filter((c) => c && !c.error && (c.as === "mask" ? c.nbytes : c.shapes?.length))
    .sort((a, b) => a.layer - b.layer);
  const made = problem ? [fault(`The loader gives no image: ${problem}`)] : picture(about, loaded ? { shown: loaded.shown } : about.image, drawn,
    loaded ? `/loaded/${about.record}?${asked}` : `/image/${about.record}/image?of=${store.digest}`, asked);
  const others = about.columns.filter((c) => c.as === "image" && !c.error && c.nbytes);
  const lists = about.columns.filter((c) => c.as === "images" && !c.error && c.value?.length);
  const stage = (column, n) => make("div", { class: "stage other" },
    make("img", { src: `/image/${about.record}/${encodeURIComponent(column.name)}?n=${n}`, alt: `Column ${column.name}${column.as === "images" ? `, image ${n}` : ""}` }));
  return [made, others.map((column) => [make("h3", {}, column.name), stage(column, 0)]),
    lists.map((column) => [make("h3", {}, column.name), column.value.map((_, n) => stage(column, n))])];
}

const fault = (text) => make("div", { class: "stage" }, make("p", { class: "broken" }, text));

function damagePanel(about) {
  const said = [about.image.error, about.key?.error].filter((text) => text && !about.findings.some((f) => f.text === text));
  if (!said.length && !about.findings.length) return null;
  const others = (also) => also.map((n, i) => [i ? ", " : ": also record ", link(number(n), { beside: n })]);
  return make("div", { class: "panel bad", role: "alert" }, make("h2", {}, about.marks.join(", ") || "Damaged"),
    [...new Set(said)].map((text) => make("p", {}, text)), about.findings.map(({ text, also }) => make("p", {}, text, others(also))));
}

function picture(about, image, drawn, address, asked) {
  if (!image.shown) return fault(about.image.error ?? "no image");
  const [width, height] = image.shown;
  const off = new Set((state().get("off") ?? "").split(",").filter(Boolean));
  const name = typeof about.key === "string" ? about.key : `record ${number(about.record)}`;
  const main = make("img", { class: "main", src: address, alt: name });
  const canvas = make("div", { class: "canvas" }, main);
  const stage = make("div", { class: "stage fitted" }, canvas);
  stage.style.setProperty("--ratio", width / height);
  canvas.style.aspectRatio = `${width} / ${height}`;
  main.addEventListener("error", async () => {
    const why = await ask(address).catch((error) => error.message);
    if (stage.isConnected) stage.replaceWith(fault(typeof why === "string" ? why : "the image cannot be shown"));
  });
  const switches = make("div", { class: "layers", role: "group", "aria-label": "Layers" });
  const drawings = drawn.map((column, i) => {
    const { layer, draw } = drawLayer(column, width, height, about, asked);
    layers[i] = column.name;
    layer.toggleAttribute("hidden", off.has(column.name));
    canvas.append(layer);
    switches.append(make("button", { type: "button", "aria-pressed": String(!off.has(column.name)), title: `Key ${i + 1}`,
      "data-switch": column.name, onclick: () => turnLayer(column.name) },
      Array.isArray(column.value) ? `${column.name} (${number(column.value.length)})` : column.name));
    return draw;
  });
  new ResizeObserver(() => {
    if (!canvas.clientWidth) return;
    canvas.classList.toggle("small", canvas.clientWidth >= 2 * width && Math.max(width, height) <= 240);
    for (const draw of drawings) draw?.(width / canvas.clientWidth);
  }).observe(canvas);
  return [stage, drawn.length ? switches : null];
}

// Shows or hides the layers of a column, in all pictures.
function turnLayer(name) {
  const off = new Set((state().get("off") ?? "").split(",").filter(Boolean));
  const visible = off.delete(name);
  if (!visible) off.add(name);
  const found = (what) => document.querySelectorAll(`[data-${what}="${CSS.escape(name)}"]`);
  for (const layer of found("layer")) layer.toggleAttribute("hidden", !visible);
  for (const button of found("switch")) button.setAttribute("aria-pressed", String(visible));
  go({ off: [...off].join(",") }, { replace: true });
}

// An element over the image, and what draws in it; that is told how many of the image's pixels are one of the screen's.
function drawLayer(column, width, height, about, asked) {
  if (column.as === "mask") {
    const name = encodeURIComponent(column.name);
    const address = asked ? `/loaded/${about.record}/${name}?${asked}` : `/mask/${about.record}/${name}`;
    return { layer: make("img", { class: "mask", src: address, alt: `Mask ${column.name}`, "data-layer": column.name }) };
  }
  const layer = make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", "data-layer": column.name });
  const draw = (shape, unit) => (shape.boxes ? drawBoxes(shape, width, height, unit)
    : shape.rings ? drawRings(shape, width, height, unit) : drawPoints(shape, unit));
  return { layer, draw: (unit) => layer.replaceChildren(...column.shapes.flatMap((shape) => draw(shape, unit))) };
}

const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  return ruler.measureText(text).width;
}

function drawBoxes(shape, width, height, unit) {
  ruler.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const boxes = [], words = [], taken = [];
  shape.boxes.forEach((box, i) => {
    const [x1, y1, x2, y2] = box.map(Number);
    if (![x1, y1, x2, y2].every(Number.isFinite)) return;
    const label = shape.numbers?.[i];
    const shade = color(label ?? i);
    boxes.push(make("rect", { x: Math.min(x1, x2), y: Math.min(y1, y2), width: Math.abs(x2 - x1), height: Math.abs(y2 - y1),
      fill: "none", class: "box", stroke: rgb(shade), "stroke-width": 2 * unit }));
    if (label !== undefined) words.push(drawLabel(shape.names[i], [x1, x2], [y1, y2], shade, width, height, unit, taken));
  });
  return [...boxes, ...words];
}

// A name above the corner of a box, else within or below it: where it is whole within the image, and on no other name.
function drawLabel(name, across, down, shade, width, height, unit, taken) {
  const room = width / unit - 6;
  let text = name;
  while (text.length > 1 && textWidth(text) > room) text = `${text.slice(0, text.endsWith("…") ? -2 : -1)}…`;
  const wide = (textWidth(text) + 6) * unit, tall = 16 * unit;
  const x = Math.max(0, Math.min(Math.min(...across), width - wide));
  const inside = (y) => Math.max(0, Math.min(y, height - tall));
  const places = [Math.min(...down) - tall, Math.min(...down), Math.max(...down)].map(inside);
  const free = (y) => !taken.slice(-MOST_COMPARED).some((other) => other.x < x + wide && x < other.x + other.wide && Math.abs(other.y - y) < tall);
  const y = places.find(free) ?? places[0];
  taken.push({ x, y, wide });
  return make("g", {}, make("rect", { class: "label", x, y, width: wide, height: tall, fill: rgb(shade) }),
    make("text", { x: x + 3 * unit, y: y + 12 * unit, "font-size": 12 * unit, fill: onTop(shade) }, text));
}

function drawRings(shape, width, height, unit) {
  const scale = shape.fractions ? [width, height] : [1, 1];
  const path = (ring) => `M${ring.map((value, i) => value * scale[i % 2]).join(" ")}Z`;
  return shape.rings.map((rings, i) => {
    const shade = rgb(color(shape.numbers?.[i] ?? i));
    return make("path", { class: "segment", d: rings.map(path).join(""), fill: shade, "fill-opacity": 0.35,
      "fill-rule": shape.holed[i] ? "evenodd" : "nonzero", stroke: shape.outlined[i] ? shade : "none", "stroke-width": 1.5 * unit });
  });
}

function drawPoints(shape, unit) {
  return shape.points.flatMap((points, i) => points.map((point) => point.map(Number))
    .filter(([x, y, visible]) => Number.isFinite(x) && Number.isFinite(y) && !(visible <= 0))
    .map(([x, y, visible]) => make("circle", { cx: x, cy: y, r: 4 * unit, fill: visible === 1 ? "none" : rgb(color(i)), stroke: "#fff", "stroke-width": 1.5 * unit })));
}

function loaderPanel(loaded, problem) {
  const now = state();
  const on = now.get("loader") === "1";
  const button = make("button", { type: "button", "aria-pressed": String(on), onclick: () => go({ loader: on ? null : "1" }) }, "As the loader sees it");
  const panel = make("div", { class: "panel loader" }, button);
  if (!on) return panel;
  const field = (name, label, attributes, standard = "") => {
    const input = make("input", { name, value: now.get(name) ?? standard, "aria-invalid": problem && name === "augment" ? "true" : null, ...attributes });
    input.addEventListener("change", () => go({ [name]: input.value === standard ? null : input.value }));
    return make("label", {}, label, input);
  };
  const preset = make("select", { "aria-label": "Augmentations, ready made" }, make("option", { value: "?" }, "choose …"),
    PRESETS.map(([text, value]) => make("option", { value }, text)));
  preset.addEventListener("change", () => preset.value !== "?" && go({ augment: preset.value || null }));
  panel.append(make("label", {}, "Ready made", preset),
    field("augment", "Augmentations", { placeholder: "RandomResizedCrop(224), RandomHorizontalFlip()", spellcheck: "false", autocomplete: "off" }),
    make("div", { class: "pair" },
      field("seed", "Seed", { type: "number", min: 0, step: 1 }, "0"),
      field("epoch", "Epoch", { type: "number", min: 0, step: 1 }, "0")));
  if (problem) panel.append(make("p", { class: "wrong", role: "alert" }, problem));
  const exact = loaded && (loaded.exact ? "The pixels are those that PackedLoader gives, bit for bit."
    : "The store holds floating point values; the image is made from those that PackedLoader gives, normalisation undone.");
  if (loaded) panel.append(make("p", { class: "quiet" }, `${loaded.shown[0]} × ${loaded.shown[1]} pixels. ${exact}`));
  return panel;
}

const table = (rows) => make("table", {}, make("tbody", {}, rows.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, cells)))));

function facts(about) {
  const { image } = about;
  const key = typeof about.key === "string" ? about.key : null;
  const kind = [image.kind, image.mode, image.progressive ? "progressive" : null].filter(Boolean).join(", ");
  const rows = [["key", key ?? "cannot be read"]];
  if (about.split !== null) rows.push(["split", about.split]);
  if (about.shard) rows.push(["shard", about.shard]);
  if (image.width) rows.push(["image", `${number(image.width)} × ${number(image.height)} pixels, ${kind}`]);
  if (image.window) {
    const [black, white] = image.window.map((value) => number(Math.round(value * 1000) / 1000));
    rows.push(["shown", `${black} as black, ${white} as white: the 1st and 99th percentile`]);
  }
  if (image.orientation > 1) {
    const turned = image.shown && image.width !== image.height && image.shown[0] === image.height && image.orientation > 4;
    rows.push(["EXIF orientation", `${image.orientation}${turned ? ", applied" : ""}`]);
    const frame = about.columns.find((c) => c.frame)?.frame;
    if (frame) rows.push(["Annotations", `of the ${frame} image`]);
  }
  if (image.nbytes !== undefined) rows.push(["bytes", bytes(image.nbytes), " ", make("a", { href: `/file/${about.record}`, download: "" }, "save")]);
  for (const sum of about.checksums) {
    const text = sum.error ?? (sum.ok ? `whole (${sum.stored})` : `damaged: ${sum.found}, expected ${sum.stored}`);
    rows.push([`checksum, ${sum.of}`, make("span", { class: sum.ok ? "good" : "wrong" }, text)]);
  }
  return make("div", { class: "panel" }, make("h2", {}, "Record"), table(rows));
}

function columnText(column) {
  if (column.error) return make("span", { class: "wrong" }, column.error);
  if (column.value === null) return make("span", { class: "quiet" }, "none");
  if (column.as === "mask" || column.as === "image") return bytes(column.nbytes);
  if (column.as === "images") return `${number(column.value.length)}: ${bytes(column.nbytes)}`;
  const cut = column.cut ? ` … (${number(column.cut)} in all)` : "";
  if (column.as === "classes") {
    const names = store.columns.find((c) => c.name === column.name)?.classes;
    const name = (v) => (store.classes?.column === column.name ? className(v) : names?.[v] ?? String(v));
    const all = [column.value].flat().map((v) => (name(v) === String(v) ? String(v) : `${name(v)} (${v})`));
    return (all.join(", ") || "none") + cut;
  }
  if (column.as === "bytes") return `${bytes(column.nbytes)}: ${column.value}`;
  if (column.as === "json") return [folded(column.value), cut];
  if (typeof column.value === "string") return column.value.includes("\n") || column.value.length > 120 ? make("pre", { tabindex: "0", class: column.as === "text" ? "prose" : "" }, column.value + cut) : column.value + cut;
  const text = JSON.stringify(column.value, (_, v) => (typeof v === "number" && !Number.isInteger(v) ? Number(v.toPrecision(6)) : v));
  const rows = Array.isArray(column.value) && Array.isArray(column.value[0]) ? text.replaceAll("],[", "],\n[") : text;
  return rows.length > 80 ? make("pre", { tabindex: "0" }, rows + cut) : rows + cut;
}

function columnsPanel(about) {
  if (!about.columns.length) return null;
  return make("div", { class: "panel" }, make("h2", {}, "Columns"), table(about.columns.map((c) => [c.name, columnText(c)])));
}

function exifPanel(about) {
  const tags = Object.entries(about.exif ?? {});
  if (!tags.length) return null;
  return make("details", { class: "panel" }, make("summary", {}, `EXIF (${tags.length})`), table(tags));
}

function codePanel(about, loaded) {
  const block = (title, text) => {
    const button = make("button", { type: "button", onclick: () => copy(text, button) }, `Copy as ${title}`);
    return [make("pre", { class: "code", tabindex: "0", "aria-label": title }, text), button];
  };
  return make("div", { class: "panel" }, make("h2", {}, "Get it elsewhere"), block("Python", loaded?.python ?? about.python), block("command", about.command));
}
