// The state of the page lies in the address behind #, so that every state has a link. This module reads it, fetches what
// it needs and hands it to the views. Text from the store goes into the page as text, never as HTML.
import { Grid } from "/grid.js";
import { Menu } from "/menu.js";
import { showOverview } from "/overview.js";
import { showRecord, recordKeys } from "/record.js";

export const $ = (id) => document.getElementById(id);

// Makes an element: attributes, then children; a string becomes text.
export function make(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "circle", "text", "g", "line", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// A class name for the n-th split, which gives its colour.
export const splitColor = (n) => `split-${n % 6}`;

export const number = (n) => Number(n).toLocaleString("en");

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 999.5 && unit < 4) { n /= 1000; unit += 1; }
  return `${unit ? Number(n.toPrecision(3)) : n} ${units[unit]}`;
}

// The answer of an address; asks again while the work behind it is under way, and tells how far that is.
export async function ask(path, { signal, progress } = {}) {
  for (;;) {
    const response = await fetch(path, { signal });
    const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    if (response.status === 202) {
      progress?.(answer.pending);
      await new Promise((resolve) => setTimeout(resolve, 200));
      signal?.throwIfAborted();
      continue;
    }
    if (!response.ok) {
      throw Object.assign(new Error(answer.error ?? `the server answered ${response.status}`), { status: response.status });
    }
    return answer;
  }
}

export let store = null;

// Parameters in the fragment of an address, after #; an absent one has its default.
const FILTERS = ["split", "class", "q", "sort", "desc", "mark", "kind", "width", "height", "pixels", "aspect", "bytes"];

export const state = () => new URLSearchParams(location.hash.slice(1));

export function go(changes, { replace = false } = {}) {
  const next = state();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "" || value === undefined) next.delete(key);
    else next.set(key, value);
  }
  const hash = `#${next}`;
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  if (!replace) render();
}

// The part of the state that says which records: what the server is asked.
export function selection(given = state()) {
  const chosen = new URLSearchParams();
  for (const name of FILTERS) if (given.has(name)) chosen.set(name, given.get(name));
  return chosen;
}

export function className(value) {
  if (value === null || value === undefined) return null;
  const names = store.classes?.names;
  return names && value >= 0 && value < names.length ? names[value] : String(value);
}

export const shortName = (value) => className(value) ?? "no label";

export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

let grid = null;
let classes = null;
let shown = "";

function render() {
  const now = state();
  const record = now.get("record");
  const overview = now.get("view") === "overview";
  const view = record !== null ? "record" : overview ? "overview" : "grid";
  $("grid-view").hidden = view !== "grid";
  $("record-view").hidden = view !== "record";
  $("overview-view").hidden = view !== "overview";
  for (const [id, name] of [["to-grid", "grid"], ["to-overview", "overview"]]) {
    if (view === name) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  fillFilters(now);
  const name = { grid: "Grid", overview: "Overview", record: `Record ${recordNumber(record)}` }[view];
  document.title = `${name} · ${store.name}`;
  grid.select(selection(now), Number(now.get("at") ?? 0), view === "grid");
  if (view === "record") showRecord(record, grid);
  if (view === "overview") showOverview();
  if (view === "grid" && shown !== "grid") { grid.layout(); $("grid").focus({ preventScroll: true }); }
  shown = view;
}

// Records count from 0 wherever the page names them, as in Python.
export const recordNumber = (record) => (/^[0-9]+$/.test(record) ? number(record) : record);

function fillFilters(now) {
  $("split").value = now.get("split") ?? "";
  classes?.show(now.get("class") ?? "");
  $("mark").value = now.get("mark") ?? "";
  $("sort").value = now.get("sort") ?? "record";
  $("side").value = now.get("side") ?? "192";
  $("desc").setAttribute("aria-pressed", String(now.get("desc") === "1"));
  $("drawn").setAttribute("aria-pressed", String(now.get("drawn") === "1"));
  if (document.activeElement !== $("q")) $("q").value = now.get("q") ?? "";
  const chips = [];
  for (const name of ["kind", ...store.measures]) {
    if (!now.has(name)) continue;
    const [low, high] = now.get(name).split(":");
    const words = name === "kind" ? now.get(name) : `${name} ${low || "…"} to ${high || "…"}`;
    chips.push(make("button", { type: "button", "aria-label": `Remove the filter ${words}`,
      onclick: () => go({ [name]: null, at: null }) }, `${words} ×`));
  }
  $("chips").replaceChildren(...chips);
}

function options(select, values) {
  select.replaceChildren(...values.map(([value, text]) => make("option", { value }, text)));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function chooseTheme() {
  const asked = state().get("theme") ?? localStorage.getItem("theme");
  setTheme(asked ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
}

function turnDrawn() {
  if (!$("drawn").hidden) go({ drawn: state().get("drawn") === "1" ? null : "1" });
}

function turnTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", next);
  setTheme(next);
}

function listen() {
  for (const id of ["split", "mark", "sort", "side"]) {
    const standard = { sort: "record", side: "192" }[id];
    $(id).addEventListener("change", () => {
      const value = $(id).value === standard ? null : $(id).value;
      go(id === "side" ? { side: value } : { [id]: value, at: null });
    });
  }
  $("desc").addEventListener("click", () => go({ desc: state().get("desc") === "1" ? null : "1", at: null }));
  $("drawn").addEventListener("click", turnDrawn);
  let waiting = 0;
  $("q").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => go({ q: $("q").value, at: null }), 250);
  });
  $("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    $("grid").focus();
  });
  $("theme").addEventListener("click", turnTheme);
  for (const [id, changes] of [["to-grid", { view: null, record: null, beside: null }], ["to-overview", { view: "overview", record: null, beside: null }]]) {
    $(id).addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go(changes);
    });
  }
  addEventListener("popstate", render);
  addEventListener("hashchange", render);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      if (typing) { typing.blur(); if (!$("grid-view").hidden) $("grid").focus(); }
      else if (state().has("beside")) go({ beside: null });
      else if (state().has("record")) go({ record: null });
      else if (state().get("view")) go({ view: null });
      return;
    }
    if (typing) return;
    if (event.key === "/") {
      if ($("grid-view").hidden) go({ record: null, beside: null, view: null });
      $("q").focus();
    } else if (event.key === "?") $("help").showModal();
    else if (event.key === "d") turnTheme();
    else if (event.key === "g") go({ record: null, beside: null, view: null });
    else if (event.key === "o") go({ record: null, beside: null, view: "overview" });
    else if (event.key === "b" && !$("grid-view").hidden) turnDrawn();
    else if (state().has("record") && recordKeys(event.key, grid)) { /* done */ }
    else return;
    event.preventDefault();
  });
}

function introduce() {
  $("name").textContent = store.name;
  $("name").title = store.path;
  const shards = store.shards === null ? "" : ` in ${number(store.shards)} shard${store.shards === 1 ? "" : "s"}`;
  const named = store.classes?.names ? `, ${number(store.classes.names.length)} classes` : "";
  const skipped = store.skipped ? `, ${number(store.skipped)} files left out when it was packed` : "";
  $("about").textContent = `${number(store.records)} records${named}, ${bytes(store.image.nbytes)} of images, ` +
    `${store.encoding} in ${store.format}${shards}${skipped}`;
  options($("split"), [["", "all"], ...store.splits.map((s) => [s.name, `${s.name} (${number(s.stop - s.start)})`])]);
  $("split-label").hidden = !store.splits.length;
  const names = store.classes?.names;
  $("class-label").hidden = !names;
  if (names && !classes) {
    const choices = [["", "all"], ...names.map((name, i) => [String(i), name]), ["-1", "(no label)"]];
    classes = new Menu($("class"), $("class-list"), choices, (value) => go({ class: value || null, at: null }));
  }
  const drawn = [...new Set(store.columns.map((c) => c.drawn))].filter(Boolean).sort();
  $("drawn").hidden = !drawn.length;
  const words = [drawn.slice(0, -1).join(", "), drawn.at(-1)].filter(Boolean).join(" and ");
  $("drawn").textContent = words.slice(0, 1).toUpperCase() + words.slice(1);
  const marks = Object.entries(store.marks);
  if (!("damaged" in store.marks)) marks.push(["damaged", null]);
  options($("mark"), [["", "all"], ...marks.map(([m, n]) => [m, n === null ? m : `${m} (${number(n)})`])]);
  const called = { record: "as stored", key: "key", pixels: "size in pixels", bytes: "size in bytes", aspect: "aspect" };
  options($("sort"), store.sorts.map((name) => [name, called[name] ?? name]));
}

// Asks anew what is known of the store: damage is found meanwhile.
export async function refreshStore() {
  store = await ask("/api/store");
  introduce();
}

chooseTheme();
try {
  await refreshStore();
  grid = new Grid();
  listen();
  render();
} catch (error) {
  $("status").textContent = error.message;
  $("status").className = "bad";
  $("status").setAttribute("role", "alert");
}
