// A menu that is searched by typing: for the classes of a store, of which there may be thousands.
import { make, number } from "/page.js";

const MOST = 100;

export class Menu {
  // `input` and `list` are its elements, `choices` pairs of value and text; calls `choose` with the value chosen.
  constructor(input, list, choices, choose) {
    Object.assign(this, { input, list, choices, choose, found: [], active: 0, value: "" });
    this.words = choices.map(([, text]) => text.toLowerCase());
    input.addEventListener("focus", () => { input.select(); this.open(""); });
    input.addEventListener("click", () => this.list.hidden && this.open(""));
    input.addEventListener("input", () => this.open(input.value, 0));
    input.addEventListener("blur", () => this.show(this.value));
    input.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const option = event.target.closest("[data-place]");
      if (option) this.take(Number(option.dataset.place));
    });
  }

  // Shows the choice that is in force, and closes the list.
  show(value) {
    this.value = value;
    this.input.value = this.choices.find(([each]) => each === value)?.[1] ?? value;
    this.close();
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  // Lists the choices with `text` in them, first those that begin with it; marks the one in force, or that at `active`.
  open(text, active) {
    const asked = text.trim().toLowerCase();
    const matching = this.choices.map((_, place) => place).filter((place) => this.words[place].includes(asked));
    const begins = (place) => this.words[place].startsWith(asked);
    this.found = [...matching.filter(begins), ...matching.filter((place) => !begins(place))];
    this.active = active ?? Math.max(0, this.found.findIndex((place) => this.choices[place][0] === this.value));
    const start = Math.max(0, Math.min(this.active - MOST / 2, this.found.length - MOST));
    this.first = start;
    const options = this.found.slice(start, start + MOST).map((place, i) => make("li", { role: "option",
      id: `${this.list.id}-${start + i}`, "data-place": start + i, "aria-selected": "false" }, this.choices[place][1]));
    const more = this.found.length - options.length;
    if (!options.length || more) {
      const words = more ? `${number(more)} more: type a part of the name` : "no name has this in it";
      options.push(make("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "quiet" }, words));
    }
    this.list.replaceChildren(...options);
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.mark();
  }

  mark() {
    for (const option of this.list.children) option.setAttribute("aria-selected", String(option.dataset.place === String(this.active)));
    const option = this.list.children[this.active - this.first];
    if (!option?.dataset.place) { this.input.removeAttribute("aria-activedescendant"); return; }
    this.input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  take(place) {
    if (place >= this.found.length) return;
    const [value] = this.choices[this.found[place]];
    this.show(value);
    this.choose(value);
  }

  key(event) {
    const last = this.first + Math.min(MOST, this.found.length - this.first) - 1;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.list.hidden) this.open("");
    else if (step) { this.active = Math.max(this.first, Math.min(last, this.active + step)); this.mark(); }
    else if (event.key === "Enter" && !this.list.hidden) this.take(this.active);
    else if (event.key === "Escape" && !this.list.hidden) this.show(this.value);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
