// JSON with a fold for each list and object in it: by the indentation of its lines, so that its text stays as it is.
// (JavaScript would round its whole numbers of more than 53 bits.)
import { make, number } from "/page.js";

const SHORT = 72;
const MOST_OPEN = 12;

const indent = (line) => line.length - line.trimStart().length;

// `text` as Python's json.dumps writes it with an indentation of 1; it may end too early.
export function folded(text) {
  return make("div", { class: "json", tabindex: "0", role: "group", "aria-label": "JSON" }, ...blocks(text.split("\n"), 0));
}

function blocks(lines, depth) {
  const made = [];
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    if (!/[[{]$/.test(line)) {
      made.push(make("div", {}, line.trim()));
      continue;
    }
    let end = at + 1;
    while (end < lines.length && indent(lines[end]) > indent(line)) end += 1;
    made.push(block(line.trim(), lines.slice(at + 1, end), lines[end]?.trim() ?? "", depth));
    at = end;
  }
  return made;
}

function block(head, inner, foot, depth) {
  const flat = inner.every((line) => indent(line) === indent(inner[0]));
  const short = [head, ...inner.map((line) => line.trim()), foot].join(" ").replace("[ ", "[").replace(/ ]/, "]");
  if (flat && short.length <= SHORT) return make("div", {}, short);
  const count = inner.filter((line) => indent(line) === indent(inner[0]) && !/^\s*[\]}]/.test(line)).length;
  const body = make("div", { class: "inner" });
  const fill = () => body.childElementCount || body.append(...blocks(inner, depth + 1));
  const open = depth === 0 && count <= MOST_OPEN;
  if (open) fill();
  const details = make("details", { open, ontoggle: () => details.open && fill() },
    make("summary", {}, `${head} … ${foot.replace(",", "")}`, " ", make("span", { class: "quiet" }, number(count))), body);
  return details;
}
