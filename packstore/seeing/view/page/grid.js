// The grid: a few rows of elements, moved about, show any part of a list of any length.
//
// A browser's elements have a largest height (Firefox: 17.8 million pixels, Chromium: 33 million), which 1,281,167 records
// in narrow columns exceed. So the scrolled element is never higher than CAP, and where the list is, its place follows
// from the scrollbar's by proportion; a small movement still moves the list by as many pixels as the finger.
import { $, ask, copy, go, make, number, shortName, state, store } from "/page.js";

const CAP = 8_000_000;
const PAGE = 200;
const KEPT_PAGES = 40;
const TEXT_PIXELS = 36;

export class Grid {
  constructor() {
    this.box = $("grid");
    this.layer = $("rows");
    this.pool = new Map();
    this.spare = [];
    this.pages = new Map();
    this.wanted = new Set();
    this.question = null;
    this.count = 0;
    this.current = 0;
    this.top = 0;
    this.box.addEventListener("scroll", () => this.scrolled());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(() => this.layout()).observe(this.box);
  }

  // Shows the records of another selection, from place `at`.
  select(question, at, visible) {
    const text = question.toString();
    const side = Number(state().get("side") ?? 192);
    const drawn = state().get("drawn") === "1";
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.clear();
      this.draw();
    }
    if (text === this.question) {
      if (side !== this.side) { this.side = side; this.layout(); }
      else if (visible && at !== this.current && this.count) { this.current = Math.min(at, this.count - 1); this.reveal(); }
      return;
    }
    this.question = text;
    this.side = side;
    this.generation = (this.generation ?? 0) + 1;
    this.abort?.abort();
    this.abort = new AbortController();
    this.pages.clear();
    this.wanted.clear();
    this.current = at;
    this.top = 0;
    this.count = 0;
    this.begin(Math.floor(at / PAGE), this.generation);
  }

  async begin(page, generation) {
    this.say("…");
    const answer = await this.fetchPage(page, generation, (p) => {
      this.say(`${p.what}: ${number(p.done)} of ${number(p.total)}`);
    });
    if (!answer) return;
    this.count = answer.count;
    this.command = answer.command;
    this.current = Math.max(0, Math.min(this.current, this.count - 1));
    this.box.setAttribute("aria-rowcount", "-1");
    this.clear();
    this.layout();
    this.reveal();
    const of = this.count === store.records ? "" : ` of ${number(store.records)}`;
    this.say(`${number(this.count)}${of} record${store.records === 1 ? "" : "s"}`);
    if (this.command && this.count && this.count < store.records) {
      const button = make("button", { type: "button", title: this.command }, "Copy as command");
      button.addEventListener("click", () => copy(this.command, button));
      $("status").append(button);
    }
  }

  say(text, bad = false) {
    $("status").replaceChildren(text);
    $("status").className = bad ? "bad" : "";
  }

  async fetchPage(page, generation, progress) {
    if (this.wanted.has(page)) return null;
    this.wanted.add(page);
    const address = `/api/rows?${this.question}&start=${page * PAGE}&stop=${(page + 1) * PAGE}`;
    try {
      const answer = await ask(address, { signal: this.abort.signal, progress });
      if (generation !== this.generation) return null;
      this.pages.set(page, answer.rows);
      while (this.pages.size > KEPT_PAGES) this.pages.delete(this.pages.keys().next().value);
      return answer;
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message, true);
      return null;
    } finally {
      if (generation === this.generation) this.wanted.delete(page);
    }
  }

  // The row of a place; null while it is not there yet.
  row(place) {
    const page = Math.floor(place / PAGE);
    return this.pages.get(page)?.[place - page * PAGE] ?? null;
  }

  // The record at a place, for whoever steps from one to the next.
  async recordAt(place) {
    if (place < 0 || place >= this.count) return null;
    if (!this.row(place)) await this.fetchPage(Math.floor(place / PAGE), this.generation);
    return this.row(place);
  }

  clear() {
    for (const element of this.pool.values()) element.remove();
    this.pool.clear();
    this.spare = [];
  }

  layout() {
    const width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    if (!width || !this.height) return;
    const narrow = matchMedia("(max-width: 520px)").matches;
    const wanted = { 96: 84, 192: 148, 384: 300 }[this.side] ?? 148;
    const space = width - (narrow ? 16 : 32);
    const columns = Math.max(narrow && wanted < 300 ? 3 : 1, Math.floor((space + 8) / (wanted + 8)));
    const size = Math.floor((space - (columns - 1) * (narrow ? 4 : 8)) / columns);
    const anchor = this.columns ? Math.floor(this.top / this.rowHeight) * this.columns : 0;
    const changed = columns !== this.columns || size !== this.size;
    this.columns = columns;
    this.size = size;
    this.rowHeight = size + TEXT_PIXELS + 8;
    this.total = Math.ceil(this.count / columns) * this.rowHeight;
    this.scrollable = Math.min(this.total, CAP);
    $("spacer").style.height = `${Math.max(this.scrollable, this.height)}px`;
    this.layer.style.height = `${this.height}px`;
    this.box.setAttribute("aria-rowcount", String(Math.max(1, Math.ceil(this.count / columns))));
    this.box.setAttribute("aria-colcount", String(columns));
    if (changed) {
      this.clear();
      this.moveTo(Math.floor(anchor / columns) * this.rowHeight);
    } else this.draw();
  }

  get farthest() { return Math.max(0, this.total - this.height); }
  get scaled() { return this.total > this.scrollable; }

  // The list's place for a place of the scrollbar, and back. At both ends a pixel is a pixel, so that the ends are reached
  // with small movements; between them it is as many as the list is higher.
  ofBar(bar) {
    if (!this.scaled) return bar;
    const edge = 2 * this.height, most = this.scrollable - this.height;
    if (bar <= edge) return bar;
    if (bar >= most - edge) return this.farthest - (most - bar);
    return edge + (bar - edge) * (this.farthest - 2 * edge) / (most - 2 * edge);
  }

  toBar(top) {
    if (!this.scaled) return top;
    const edge = 2 * this.height, most = this.scrollable - this.height;
    if (top <= edge) return top;
    if (top >= this.farthest - edge) return most - (this.farthest - top);
    return edge + (top - edge) * (most - 2 * edge) / (this.farthest - 2 * edge);
  }

  moveTo(top) {
    this.top = Math.max(0, Math.min(top, this.farthest));
    this.settle();
    this.draw();
  }

  // Puts the scrollbar where the list is.
  settle() {
    this.bar = Math.round(this.toBar(this.top));
    if (this.box.scrollTop !== this.bar) this.box.scrollTop = this.bar;
    this.bar = this.box.scrollTop;
  }

  scrolled() {
    const now = this.box.scrollTop;
    const step = now - (this.bar ?? 0);
    if (!step) return;
    this.bar = now;
    const far = Math.abs(step) > 2 * this.height;
    this.top = this.scaled && !far ? this.top + step : this.ofBar(now);
    this.top = Math.max(0, Math.min(this.top, this.farthest));
    this.fast = far || Math.abs(step) > this.height;
    this.chosen = false;
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.fast = false;
      if (this.scaled) this.settle();
      this.draw();
      // A tile that was chosen meanwhile is the place, not what is at the top.
      if (!$("grid-view").hidden && !this.chosen) go({ at: Math.floor(this.top / this.rowHeight) * this.columns || null }, { replace: true });
    }, 90);
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    if (!this.columns || !this.height) return;
    if (!this.count) {
      this.clear();
      const text = this.wanted.size ? "" : "No records match. Remove a filter to see more.";
      this.layer.replaceChildren(make("p", { class: "empty" }, text));
      return;
    }
    this.layer.querySelector(".empty")?.remove();
    const rows = Math.ceil(this.count / this.columns);
    const first = Math.max(0, Math.floor(this.top / this.rowHeight) - 1);
    const last = Math.min(rows, Math.ceil((this.top + this.height) / this.rowHeight) + 1);
    for (const [index, element] of this.pool) {
      if (index < first || index >= last) { this.pool.delete(index); this.spare.push(element); }
    }
    for (let index = first; index < last; index += 1) {
      let element = this.pool.get(index);
      if (!element) {
        element = this.spare.pop() ?? this.newRow();
        element.setAttribute("aria-rowindex", String(index + 1));
        for (const tile of element.children) this.forget(tile);
        this.pool.set(index, element);
        if (!element.parentNode) this.layer.append(element);
      }
      element.style.transform = `translateY(${Math.round(index * this.rowHeight - this.top)}px)`;
      [...element.children].forEach((tile, column) => this.fill(tile, index * this.columns + column));
    }
    for (const element of this.spare) element.remove();
    this.box.setAttribute("aria-activedescendant", `place-${this.current}`);
    const pages = [Math.floor((first * this.columns) / PAGE), Math.floor((last * this.columns - 1) / PAGE)];
    for (const page of new Set(pages)) {
      if (!this.fast && page * PAGE < this.count && !this.pages.has(page)) {
        this.fetchPage(page, this.generation).then((answer) => answer && this.draw());
      }
    }
  }

  newRow() {
    const tiles = Array.from({ length: this.columns }, (_, column) => make("div",
      { class: "tile", role: "gridcell", "aria-colindex": column + 1 },
      make("div", { class: "frame" }), make("span", { class: "text name" }), make("span", { class: "text key" }, make("bdi"))));
    const row = make("div", { class: "row", role: "row" }, tiles);
    row.style.gridTemplateColumns = `repeat(${this.columns}, minmax(0, 1fr))`;
    row.style.height = `${this.rowHeight}px`;
    return row;
  }

  forget(tile) {
    tile.dataset.record = tile.dataset.absent = "";
    tile.querySelector("img")?.removeAttribute("src");
    tile.querySelector(".frame").replaceChildren();
    tile.querySelector(".name").textContent = "";
    tile.querySelector(".key bdi").textContent = "";
    tile.classList.remove("damaged");
  }

  fill(tile, place) {
    tile.hidden = place >= this.count;
    tile.id = `place-${place}`;
    tile.classList.toggle("current", place === this.current);
    tile.setAttribute("aria-selected", String(place === this.current));
    const row = place < this.count ? this.row(place) : null;
    const same = row && tile.dataset.record === String(row.record);
    if (!row || (same && Boolean(tile.dataset.absent) === Boolean(row.absent))) {
      if (!row) tile.setAttribute("aria-label", `place ${number(place)}, being read`);
      else if (!this.fast) this.picture(tile, row);
      return;
    }
    tile.dataset.record = row.record;
    tile.dataset.absent = row.absent ? "1" : "";
    const classes = Array.isArray(row.class) ? row.class : [row.class];
    const names = row.error ? "unreadable" : row.absent || !store.classes ? `#${number(row.record)}` : classes.map(shortName).join(", ");
    tile.querySelector(".name").textContent = names || "no label";
    const key = row.key ?? row.error ?? (row.absent ? "being fetched" : "");
    tile.querySelector(".key bdi").textContent = key;
    tile.title = key;
    const marks = row.marks ?? [];
    tile.classList.toggle("damaged", marks.includes("damaged") || Boolean(row.error));
    tile.setAttribute("aria-label", [`record ${number(row.record)}`, names, key, ...marks].filter(Boolean).join(", "));
    const frame = tile.querySelector(".frame");
    if (!same) frame.replaceChildren();
    frame.querySelector(".marks")?.remove();
    if (marks.length) frame.append(make("span", { class: "marks" }, marks.slice(0, 3).map((m) => make("span", { class: "badge" }, m))));
    if (!this.fast) this.picture(tile, row);
  }

  picture(tile, row) {
    const frame = tile.querySelector(".frame");
    if (frame.querySelector("img, .broken")) return;
    const side = Math.min(384, this.size * devicePixelRatio > 230 ? 384 : this.size > 110 ? 192 : 96);
    const image = make("img", { alt: "", decoding: "async", draggable: "false" });
    image.addEventListener("load", () => {
      image.classList.toggle("small", image.naturalWidth * 2 <= this.size);
      if (row.absent) this.freshen(Math.floor(Number(tile.id.slice(6)) / PAGE));
    });
    image.addEventListener("error", async () => {
      if (!image.isConnected) return;
      let word = "damaged";
      if (row.absent) {
        const why = await ask(image.src).catch((error) => error);
        if (why.status === 503) word = "not fetched";
        if (!image.isConnected) return;
        tile.title = why.message ?? "";
        tile.querySelector(".key bdi").textContent = "its shard cannot be read";
      }
      image.replaceWith(make("span", { class: "broken" }, word));
      if (word === "damaged") tile.classList.add("damaged");
      tile.setAttribute("aria-label", `${tile.getAttribute("aria-label")}, ${word}`);
    });
    image.src = `/thumbnail/${side}/${row.record}?of=${store.digest}${this.drawn ? "&drawn=1" : ""}`;
    frame.prepend(image);
  }

  // Asks for the rows of a page anew: the shard that they are in has been fetched.
  freshen(page) {
    clearTimeout(this.stale);
    this.stale = setTimeout(() => this.fetchPage(page, this.generation).then((answer) => answer && this.draw()), 60);
  }

  // Brings the current tile into view.
  reveal() {
    if (!this.columns) return;
    const top = Math.floor(this.current / this.columns) * this.rowHeight;
    if (top < this.top) this.moveTo(top);
    else if (top + this.rowHeight > this.top + this.height) this.moveTo(top + this.rowHeight - this.height);
    else this.draw();
  }

  choose(place) {
    this.current = Math.max(0, Math.min(place, this.count - 1));
    this.chosen = true;
    this.reveal();
    go({ at: this.current || null }, { replace: true });
  }

  open(place) {
    const row = this.row(place);
    if (!row) return;
    this.current = place;
    this.chosen = true;
    go({ at: place || null }, { replace: true });
    go({ record: row.record });
  }

  clicked(event) {
    const tile = event.target.closest(".tile");
    if (!tile) return;
    this.open(Number(tile.id.slice(6)));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.height / this.rowHeight)) * this.columns;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page,
      Home: -this.count, End: this.count,
    };
    if (event.ctrlKey && !["Home", "End"].includes(event.key)) return;
    if (event.key in steps) {
      const next = this.current + steps[event.key];
      if (["ArrowUp", "ArrowDown"].includes(event.key) && (next < 0 || next >= this.count)) { event.preventDefault(); return; }
      this.choose(next);
    } else if (event.key === "Enter" || event.key === " ") this.open(this.current);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
