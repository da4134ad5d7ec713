// One record: its image with layers over it, all its columns, and the same record as a loader gives it.
import { $, ask, bytes, className, copy, go, make, number, selection, state, store } from "/page.js";

const DRAWN = ["mask", "boxes", "keypoints"];  // from below to above
const PRESETS = [
  ["as it is", ""],
  ["crop and flip, as for ImageNet", "RandomResizedCrop(224), RandomHorizontalFlip()"],
  ["evaluation, as for ImageNet", "Resize(256), CenterCrop(224)"],
  ["padded crop and flip, as for CIFAR", "RandomCrop(32, padding=4), RandomHorizontalFlip()"],
];

let abort = null;
let current = { record: null, place: null };
let layers = [];

// The colour of a class, as packstore/seeing/colors.py computes it for masks: from hue, saturation and value.
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
// Black or white, whichever is easier to read on a colour.
const onTop = ([red, green, blue]) => (red * 0.3 + green * 0.59 + blue * 0.11 > 110 ? "#000" : "#fff");

export async function showRecord(record, grid) {
  const box = $("record-view");
  abort?.abort();
  abort = new AbortController();
  const signal = abort.signal;
  const again = current.record === record && box.childElementCount;
  current.record = record;
  if (!again) {
    box.replaceChildren(bar(record, grid), make("p", { class: "empty" }, "…"));
    box.scrollTop = 0;
  }
  try {
    box.classList.add("waiting");
    const known = again && current.about && current.about.record === Number(record) ? current.about : await ask(`/api/record/${encodeURIComponent(record)}`, { signal });
    current.about = known;
    const asked = loaderState();
    let loaded = null;
    let problem = null;
    if (asked) {
      try {
        loaded = await ask(`/api/loaded/${record}?${asked}`, { signal });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        problem = error.message;
      }
    }
    box.classList.remove("waiting");
    box.replaceChildren(bar(record, grid), content(known, loaded, asked, problem));
    box.setAttribute("tabindex", "-1");
    if (!box.contains(document.activeElement)) box.focus({ preventScroll: true });
    await findPlace(record, grid, signal);
  } catch (error) {
    if (error.name !== "AbortError") box.replaceChildren(bar(record, grid), make("p", { class: "empty", role: "alert" }, error.message));
  }
}

// Where the record stands among those of the grid: for the buttons that go to its neighbours.
async function findPlace(record, grid, signal) {
  const row = grid.row(grid.current);
  if (row && String(row.record) === String(record)) current.place = grid.current;
  else current.place = (await ask(`/api/place/${record}?${selection()}`, { signal })).place;
  const place = current.place;
  $("before").disabled = place === null || place <= 0;
  $("after").disabled = place === null || place >= grid.count - 1;
  $("place").textContent = place === null ? "not among the chosen records" : `${number(place + 1)} of ${number(grid.count || store.records)}`;
}

async function step(by, grid) {
  if (current.place === null) return;
  const place = current.place + by;
  const row = await grid.recordAt(place);
  if (!row) return;
  grid.current = place;
  go({ at: place || null }, { replace: true });
  go({ record: row.record });
}

export function recordKeys(key, grid) {
  if (key === "ArrowLeft" || key === "k") step(-1, grid);
  else if (key === "ArrowRight" || key === "j") step(1, grid);
  else if (key === "a") go({ loader: state().get("loader") === "1" ? null : "1" });
  else if (/^[1-9]$/.test(key) && layers[key - 1]) layers[key - 1].click();
  else return false;
  return true;
}

function bar(record, grid) {
  return make("div", { class: "bar" },
    make("button", { type: "button", onclick: () => go({ record: null }) }, "← Grid"),
    make("span", { class: "title" }, `Record ${record}`),
    make("span", { id: "place", class: "quiet" }),
    make("button", { type: "button", id: "before", "aria-label": "Record before", onclick: () => step(-1, grid) }, "‹ Before"),
    make("button", { type: "button", id: "after", "aria-label": "Record after", onclick: () => step(1, grid) }, "After ›"));
}

function loaderState() {
  const now = state();
  if (now.get("loader") !== "1") return null;
  const asked = new URLSearchParams();
  for (const name of ["augment", "seed", "epoch"]) asked.set(name, now.get(name) ?? (name === "augment" ? "" : "0"));
  return asked;
}

function content(about, loaded, asked, problem) {
  const given = (c) => (loaded ? loaded.columns.find((other) => other.name === c.name) : c);
  const drawn = about.columns.filter((c) => DRAWN.includes(c.type)).map(given).filter((c) => c && !c.error && (c.type === "mask" ? c.nbytes : c.value?.length))
    .sort((a, b) => DRAWN.indexOf(a.type) - DRAWN.indexOf(b.type));
  const image = loaded ? { shown: loaded.shown } : about.image;
  const address = loaded ? `/loaded/${about.record}?${asked}` : `/image/${about.record}/image?of=${store.digest}`;
  const left = make("div", {}, problem && make("div", { class: "panel bad", role: "alert" }, problem),
    picture(about, image, drawn, address, loaded ?? about, asked));
  const others = about.columns.filter((c) => c.type === "image" && !c.error);
  for (const column of others) {
    left.append(make("h3", {}, column.name), make("div", { class: "stage" },
      make("img", { src: `/image/${about.record}/${column.name}`, alt: `Column ${column.name}` })));
  }
  const key = typeof about.key === "string" ? about.key : null;
  const damage = [about.image.error, about.key?.error, ...about.findings].filter(Boolean);
  const right = make("div", {},
    damage.length ? make("div", { class: "panel bad", role: "alert" }, make("h2", {}, about.marks.join(", ") || "Damaged"),
      [...new Set(damage)].map((text) => make("p", {}, text))) : null,
    loaderPanel(loaded), facts(about, key), columnsPanel(about), exifPanel(about), codePanel(about, loaded));
  return make("div", { class: "record" }, left, right);
}

function picture(about, image, drawn, address, source, asked) {
  layers = [];
  if (!image.shown) return make("div", { class: "stage" }, make("p", { class: "broken" }, about.image.error ?? "no image"));
  const [width, height] = image.shown;
  const off = new Set((state().get("off") ?? "").split(",").filter(Boolean));
  const name = typeof about.key === "string" ? about.key : `record ${about.record}`;
  const canvas = make("div", { class: "canvas" }, make("img", { class: "main", src: address, alt: name }));
  const grow = Math.max(1, Math.min(8, Math.floor(480 / Math.max(width, height))));
  canvas.style.aspectRatio = `${width} / ${height}`;
  canvas.style.width = `min(100%, ${width * grow}px, calc((100vh - 190px) * ${width / height}))`;
  canvas.classList.toggle("small", grow > 1);
  const switches = make("div", { class: "layers", role: "group", "aria-label": "Layers" });
  drawn.forEach((column, place) => {
    const layer = drawLayer(column, source, width, height, grow, about, asked);
    const button = make("button", { type: "button", "aria-pressed": String(!off.has(column.name)), title: `Key ${place + 1}` },
      column.type === "mask" ? column.name : `${column.name} (${column.value.length})`);
    layer.toggleAttribute("hidden", off.has(column.name));
    button.addEventListener("click", () => {
      const visible = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(visible));
      layer.toggleAttribute("hidden", !visible);
      if (visible) off.delete(column.name);
      else off.add(column.name);
      go({ off: [...off].join(",") }, { replace: true });
    });
    layers.push(button);
    canvas.append(layer);
    switches.append(button);
  });
  return make("div", {}, make("div", { class: "stage" }, canvas), drawn.length ? switches : null);
}

function drawLayer(column, source, width, height, grow, about, asked) {
  if (column.type === "mask") {
    const address = asked ? `/loaded/${about.record}/${column.name}?${asked}` : `/mask/${about.record}/${column.name}`;
    return make("img", { class: "mask", src: address, alt: `Mask ${column.name}`, "data-layer": column.name });
  }
  const unit = Math.max(width, height) / 500 || 1;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", "data-layer": column.name });
  const labels = source.columns.find((c) => c.type === "labels" && c.parallel === column.name);
  const names = store.columns.find((c) => c.name === labels?.name)?.classes ?? (labels && store.classes?.column === labels.name ? store.classes.names : null);
  if (column.type === "boxes") {
    column.value.forEach((box, i) => {
      const [x1, y1, x2, y2] = box.map(Number);
      if (![x1, y1, x2, y2].every(Number.isFinite)) return;
      const label = labels?.value?.[i];
      const text = label === undefined ? "" : names?.[label] ?? String(label);
      const shade = color(label ?? i);
      const fill = rgb(shade);
      svg.append(make("rect", { x: Math.min(x1, x2), y: Math.min(y1, y2), width: Math.abs(x2 - x1), height: Math.abs(y2 - y1),
        fill: "none", class: "box", stroke: fill, "stroke-width": 2 * unit }));
      if (!text) return;
      const size = 13 * unit;
      const wide = Math.min(width, text.length * size * 0.6 + 6 * unit);
      const x = Math.max(0, Math.min(x1, x2, width - wide));
      const y = Math.max(0, Math.min(y1, y2) - size * 1.3);
      svg.append(make("rect", { class: "label", x, y, width: wide, height: size * 1.3, fill }),
        make("text", { x: x + 3 * unit, y: y + size, "font-size": size, fill: onTop(shade) }, text));
    });
    return svg;
  }
  column.value.forEach((row, i) => {
    const points = Array.isArray(row[0]) ? row : [row];
    for (const [x, y, visible] of points.map((p) => p.map(Number))) {
      if (!Number.isFinite(x) || !Number.isFinite(y) || visible <= 0) continue;
      svg.append(make("circle", { cx: x, cy: y, r: 4 * unit, fill: visible === 1 ? "none" : rgb(color(i)), stroke: "#fff", "stroke-width": 1.5 * unit }));
    }
  });
  return svg;
}

function loaderPanel(loaded) {
  const now = state();
  const on = now.get("loader") === "1";
  const button = make("button", { type: "button", "aria-pressed": String(on), onclick: () => go({ loader: on ? null : "1" }) }, "As the loader sees it");
  const panel = make("div", { class: "panel loader" }, button);
  if (!on) return panel;
  const field = (name, label, attributes, standard = "") => {
    const input = make("input", { name, value: now.get(name) ?? standard, ...attributes });
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
  const exact = loaded && (loaded.exact ? "The pixels are those that PackedLoader gives, bit for bit."
    : "The store holds floating point values; the image is made from those that PackedLoader gives, normalisation undone.");
  if (loaded) panel.append(make("p", { class: "quiet" }, `${loaded.shown[0]} × ${loaded.shown[1]} pixels. ${exact}`));
  return panel;
}

const table = (rows) => make("table", {}, make("tbody", {}, rows.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, cells)))));

function facts(about, key) {
  const { image } = about;
  const kind = [image.kind, image.mode, image.progressive ? "progressive" : null].filter(Boolean).join(", ");
  const rows = [["key", key ?? "cannot be read"]];
  if (about.split !== null) rows.push(["split", about.split]);
  if (about.shard) rows.push(["shard", about.shard]);
  if (image.width) rows.push(["image", `${number(image.width)} × ${number(image.height)} pixels, ${kind}`]);
  if (image.orientation > 1) {
    const turned = image.shown && image.width !== image.height && image.shown[0] === image.height && image.orientation > 4;
    rows.push(["EXIF orientation", `${image.orientation}${turned ? ", applied" : ""}`]);
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
  if (column.type === "mask" || column.type === "image") return bytes(column.nbytes);
  const cut = column.cut ? ` … (${number(column.cut)} in all)` : "";
  if (column.type === "label" || column.type === "labels") {
    const names = store.columns.find((c) => c.name === column.name)?.classes;
    const name = (v) => (store.classes?.column === column.name ? className(v) : names?.[v] ?? String(v));
    const all = [column.value].flat().map((v) => (name(v) === String(v) ? String(v) : `${name(v)} (${v})`));
    return (all.join(", ") || "none") + cut;
  }
  if (column.type === "bytes") return `${bytes(column.nbytes)}: ${column.value}`;
  if (typeof column.value === "string") return column.value.includes("\n") || column.value.length > 120 ? make("pre", { tabindex: "0", class: column.type === "text" ? "prose" : "" }, column.value + cut) : column.value + cut;
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
