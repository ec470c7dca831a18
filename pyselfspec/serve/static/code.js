// A block of code: its language, a button that copies it, its text with syntax colours.

import {button, h} from "./dom.js";
import {highlighted} from "./highlight.js";
import {run} from "./lines.js";
import {copy} from "./toast.js";

// lines: texts. leaf(i, text, dress): nodes for line i, in which dress(from, to) makes those of a part.
export function codeBlock(language, lines, leaf = plainLeaf) {
  const code = h("code");
  const parts = highlighted(lines.join("\n"), language);
  let [at, next] = [0, 0];
  lines.forEach((text, i) => {
    if (i) code.append("\n");
    next += run(parts, next, (part) => part.end <= at).length;
    const mine = run(parts, next, (part) => part.start < at + text.length);
    code.append(...leaf(i, text, (from, to) => dressed(text, mine, at, from, to)));
    at += text.length + 1;
  });
  const copies = button({class: "quiet-button", onclick: () => copy(code.textContent)}, "Copy");
  return h(
    "div",
    {class: "code"},
    h("div", {class: "code-head"}, h("span", {}, language || "text"), copies),
    h("pre", {tabindex: 0, role: "group", "aria-label": `Code, ${language || "text"}`}, code),
  );
}

const plainLeaf = (_, text, dress) => dress(0, text.length);

// text.slice(from, to) with its parts in spans; start: of the text in the code.
function dressed(text, parts, start, from, to) {
  const nodes = [];
  let at = from;
  for (const part of parts) {
    const [begin, end] = [Math.max(part.start - start, at), Math.min(part.end - start, to)];
    if (begin >= end) continue;
    if (begin > at) nodes.push(text.slice(at, begin));
    nodes.push(h("span", {class: `code-${part.kind}`}, text.slice(begin, end)));
    at = end;
  }
  if (at < to) nodes.push(text.slice(at, to));
  return nodes;
}
