// The overview: classes, sizes and kinds. A choice here filters the grid.
import { $, ask, bytes, className, go, make, number, refreshStore, splitColor, state, store } from "/page.js";

const TITLES = { width: "Width, pixels", height: "Height, pixels", pixels: "Size, pixels", aspect: "Width / height", bytes: "Size, bytes" };
const MOST_CLASSES = 300;

let abort = null;

const short = (n) => (n >= 1e6 ? `${Number((n / 1e6).toPrecision(3))}M` : n >= 1e4 ? `${Number((n / 1e3).toPrecision(3))}k` : n >= 100 ? String(Math.round(n)) : String(Number(n.toPrecision(3))));
const shown = (name, n) => (name === "bytes" ? bytes(Math.round(n)) : short(n));

export function showOverview() {
  abort?.abort();
  abort = new AbortController();
  const signal = abort.signal;
  const split = state().get("split");
  const box = $("overview-view");
  const status = make("p", { role: "status", class: "quiet" });
  const sizes = make("div", { class: "charts" });
  const classes = make("div", { class: "charts" });
  const found = make("div", { class: "panel" });
  fillFindings(found);
  box.replaceChildren(make("h2", {}, split ? `Split ${split}` : "All records"), status, found, sizes, classes);
  const all = state().get("all") === "1" ? "1" : "";
  const asked = new URLSearchParams({ ...(split ? { split } : {}), ...(all ? { all } : {}) });
  load(`/api/sizes?${asked}`, sizes, signal, (answer) => fillSizes(sizes, status, answer));
  if (store.classes) load(`/api/classes${all && "?all=1"}`, classes, signal, (answer) => fillClasses(classes, answer, split));
}

async function load(address, place, signal, fill) {
  const bar = make("progress", { max: 1, "aria-label": "Being computed" });
  const text = make("span");
  place.replaceChildren(make("div", { class: "panel wide" }, text, bar));
  try {
    const answer = await ask(address, { signal, progress: (p) => {
      text.textContent = `${p.what}: ${number(p.done)} of ${number(p.total)}`;
      bar.value = p.total ? p.done / p.total : 0;
    } });
    fill(answer);
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(make("div", { class: "panel bad wide", role: "alert" }, error.message));
  }
}

function fillFindings(place, verified = null) {
  const fetched = store.absent_bytes ? ` (fetches ${bytes(store.absent_bytes)})` : "";
  const button = make("button", { type: "button" }, `Compare all records with their checksums${fetched}`);
  const progress = make("span", { role: "status" });
  if (verified !== null) progress.textContent = verified ? `${number(verified)} ${verified === 1 ? "problem" : "problems"}` : "Every record matches its checksums.";
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const answer = await ask("/api/verify", { progress: (p) => {
        progress.textContent = `${p.what}: ${number(p.done)} of ${number(p.total)}`;
      } });
      await refreshStore();
      fillFindings(place, answer.problems);
    } catch (error) {
      progress.textContent = error.message;
    }
  });
  place.replaceChildren(make("h2", {}, "Findings"), make("p", { class: "between" }, button, progress),
    make("div", { class: "kinds" }, Object.entries(store.kinds).map(([kind, words]) => [
      Object.hasOwn(store.marks, kind) ? make("p", {}, make("button", { type: "button", onclick: () => go({ mark: kind, view: null, at: null }) },
        `${kind}: ${number(store.marks[kind])}`), " ", make("span", { class: "quiet" }, words)) : null,
      Object.hasOwn(store.notes, kind) ? notesOf(kind, words, store.notes[kind]) : null])));
}

// Findings of one kind that concern no single record; folded if they are more than three.
function notesOf(kind, words, { count, texts }) {
  const more = count > texts.length ? make("li", { class: "quiet" }, `and ${number(count - texts.length)} more`) : null;
  return make("details", { open: count <= 3 }, make("summary", {}, `${kind}: ${number(count)}`, " ", make("span", { class: "quiet" }, words)),
    make("ul", { tabindex: "0", role: "list", "aria-label": kind }, texts.map((text) => make("li", {}, text)), more));
}

// The colours of splits, where there are several.
function legend(names) {
  return names.length < 2 ? null : make("span", { class: "legend" }, names.map((name) => make("span", {}, swatch(name), name)));
}

const placeOf = (split) => Math.max(0, store.splits.findIndex((s) => s.name === split));
const swatch = (split) => make("span", { class: `swatch ${splitColor(placeOf(split))}`, "aria-hidden": "true" });

function fillSizes(place, status, answer) {
  const sampled = answer.seen < answer.total;
  const absent = answer.absent_bytes ? `, which lie on this machine` : ", evenly spread";
  status.replaceChildren(sampled ? `From a sample of ${number(answer.seen)} of ${number(answer.total)} images${absent}. ` : `${number(answer.total)} images.`);
  if (sampled) {
    const fetched = answer.absent_bytes ? ` (fetches ${bytes(answer.absent_bytes)})` : "";
    status.append(make("button", { type: "button", onclick: () => go({ all: "1" }) }, `Look at all of them${fetched}`));
  }
  const named = legend(store.splits.map((s) => s.name).filter((name) => Object.values(answer.histograms).some((h) => h && Object.hasOwn(h.splits, name))));
  if (named) status.append(" ", named);
  const charts = store.measures.filter((name) => answer.histograms[name]).map((name) => chart(name, answer.histograms[name]));
  charts.push(make("div", { class: "panel" }, make("h2", {}, "Kinds"), make("table", {}, make("tbody", {}, answer.kinds.map(({ name, count }) =>
    make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", class: "plain", onclick: () => go({ kind: name, view: null, at: null }) }, name)),
      make("td", { class: "number" }, number(count))))))));
  place.replaceChildren(...charts);
}

function chart(name, { edges, counts, splits }) {
  if (edges[0] === edges.at(-1)) {
    return make("div", { class: "panel" }, make("h2", {}, TITLES[name]), make("p", {}, `${shown(name, edges[0])} in all images`));
  }
  const now = (state().get(name) ?? ":").split(":");
  const most = Math.max(...counts);
  const width = 100 / counts.length;
  const bars = counts.map((count, i) => {
    const all = Math.max(3, (count / most) * 96);
    let top = 100;
    const parts = Object.entries(splits).filter(([, of]) => of[i]).map(([split, of]) => {
      const height = (all * of[i]) / count;
      top -= height;
      return make("rect", { class: splitColor(placeOf(split)), x: i * width + 0.3, width: Math.max(0.2, width - 0.6), y: top, height });
    });
    const each = Object.keys(splits).length > 1 ? ` (${Object.entries(splits).map(([split, of]) => `${split} ${number(of[i])}`).join(", ")})` : "";
    return make("g", { class: "bar-of" }, parts, make("title", {}, `${shown(name, edges[i])} to ${shown(name, edges[i + 1])}: ${number(count)}${each}`));
  });
  const words = `${TITLES[name]}: from ${shown(name, edges[0])} to ${shown(name, edges.at(-1))}; most of them between ` +
    `${shown(name, edges[counts.indexOf(most)])} and ${shown(name, edges[counts.indexOf(most) + 1])}`;
  const svg = make("svg", { class: "histogram", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": words }, bars);
  const low = make("input", { type: "number", step: "any", "aria-label": `${TITLES[name]}, from`, value: now[0] ?? "" });
  const high = make("input", { type: "number", step: "any", "aria-label": `${TITLES[name]}, to`, value: now[1] ?? "" });
  const mark = () => bars.forEach((bar, i) => bar.classList.toggle("chosen", (low.value !== "" || high.value !== "")
    && edges[i + 1] > Number(low.value || -Infinity) && edges[i] < Number(high.value || Infinity)));
  const take = () => {
    mark();
    go({ [name]: low.value === "" && high.value === "" ? null : `${low.value}:${high.value}`, at: null }, { replace: true });
  };
  low.addEventListener("change", take);
  high.addEventListener("change", take);
  brush(svg, counts.length, (first, last) => {
    const down = name === "aspect" ? (v) => Number(v.toPrecision(4)) : Math.floor;
    const up = name === "aspect" ? (v) => Number(v.toPrecision(4)) : Math.ceil;
    low.value = down(edges[first]);
    high.value = up(edges[last + 1]);
    mark();
  }, take);
  mark();
  return make("div", { class: "panel" }, make("h2", {}, TITLES[name]), svg,
    make("div", { class: "axis", "aria-hidden": "true" }, make("span", {}, shown(name, edges[0])), make("span", {}, "log scale"), make("span", {}, shown(name, edges.at(-1)))),
    make("div", { class: "between" }, low, "to", high,
      make("button", { type: "button", onclick: () => { take(); go({ view: null }); } }, "Show"),
      make("button", { type: "button", "aria-label": `Any ${name}`, onclick: () => { low.value = high.value = ""; take(); } }, "Any")));
}

// Calls `move` with the first and last bar under a drag, and `end` when it is over.
function brush(svg, count, move, end) {
  let from = null;
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
  };
  svg.addEventListener("pointerdown", (event) => {
    from = at(event);
    svg.setPointerCapture(event.pointerId);
    move(from, from);
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => from !== null && move(Math.min(from, at(event)), Math.max(from, at(event))));
  svg.addEventListener("pointerup", () => { if (from !== null) { from = null; end(); } });
  svg.addEventListener("pointercancel", () => { from = null; });
}

function fillClasses(place, answer, split) {
  const splits = answer.splits.filter((s) => !split || s.name === split);
  const sums = Array.from({ length: answer.classes }, (_, i) => splits.reduce((sum, s) => sum + s.counts[i], 0));
  const order = sums.map((_, i) => i).sort((a, b) => sums[b] - sums[a] || a - b);
  const listed = order.length > MOST_CLASSES ? [...order.slice(0, MOST_CLASSES / 2), ...order.slice(-MOST_CLASSES / 2)] : order;
  const most = sums.reduce((a, b) => Math.max(a, b), 1);
  const least = sums.reduce((a, b) => Math.min(a, b), most);
  const rows = listed.map((i) => {
    const fill = splits.map((s) => {
      const part = make("span", { class: `fill ${splitColor(placeOf(s.name))}`, title: `${s.name}: ${number(s.counts[i])}` });
      part.style.width = `${(100 * s.counts[i]) / most}%`;
      return part;
    });
    return make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", class: "plain", onclick: () => go({ class: String(i), view: null, at: null }) }, className(i))),
      splits.map((s) => make("td", { class: "number" }, number(s.counts[i]))), make("td", { class: "bars" }, make("div", { class: "stack" }, fill)));
  });
  const missing = splits.reduce((sum, s) => sum + s.missing, 0);
  const unreadable = splits.reduce((sum, s) => sum + s.unreadable, 0);
  const empty = sums.filter((n) => n === 0).length;
  const told = [
    `${number(answer.classes)} classes, ${least === most ? number(most) : `${number(least)} to ${number(most)}`} ${answer.together ? "records with each" : "records each"}`,
    empty && answer.seen === store.records ? `${number(empty)} empty` : null, missing ? `${number(missing)} records without` : null,
    unreadable ? `${number(unreadable)} unreadable` : null,
    answer.seen < store.records ? `from a sample of ${number(answer.seen)} records` : null,
    listed.length < order.length ? `the ${MOST_CLASSES / 2} largest and smallest are listed` : null,
  ].filter(Boolean).join("; ");
  const panels = [make("div", { class: "panel wide" }, make("h2", {}, `Classes (${answer.column})`), make("p", { class: "quiet" }, told),
    make("div", { class: "classes", tabindex: "0", role: "region", "aria-label": "Classes" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "class"), splits.map((s) => make("th", { scope: "col", class: "number" }, splits.length > 1 ? swatch(s.name) : null, s.name)), make("td"))),
      make("tbody", {}, rows))))];
  if (answer.together?.classes.length > 1) panels.push(togetherPanel(answer.together));
  place.replaceChildren(...panels);
}

function togetherPanel({ classes, counts }) {
  const most = Math.max(1, ...counts.flatMap((row, i) => row.filter((_, j) => j !== i)));
  const rows = counts.map((row, i) => make("tr", {}, make("th", { scope: "row" }, className(classes[i])), row.map((n, j) => {
    const cell = make("td", { class: "number" }, n ? short(n) : "");
    if (i !== j && n) cell.style.background = `color-mix(in srgb, var(--bar) ${Math.round(8 + (60 * n) / most)}%, transparent)`;
    return cell;
  })));
  return make("div", { class: "panel wide" }, make("h2", {}, "Classes that occur together"),
    make("p", { class: "quiet" }, "Records with both; on the diagonal, with the class itself. The most frequent classes."),
    make("div", { class: "matrix", tabindex: "0", role: "region", "aria-label": "Classes that occur together" }, make("table", {},
      make("thead", {}, make("tr", {}, make("td"), classes.map((i) => make("th", { scope: "col" }, className(i))))), make("tbody", {}, rows))));
}
