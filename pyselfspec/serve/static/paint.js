// The text of an answer as elements of Markdown, with characters marked by source.

import {codeBlock} from "./code.js";
import {h} from "./dom.js";
import {blocks, inline} from "./markdown.js";
import {formula} from "./math.js";
import {OWN, meaning} from "./sources.js";

const [THINK, THOUGHT] = ["<think>", "</think>"]; // around reasoning before the answer

// Updates only the blocks that have changed.
export class Painter {
  #element;
  #painted = []; // {key, node} by block
  #thought = h("div", {class: "thought"}); // reasoning that the completion begins with
  #paintedThought = [];
  #summary = h("summary");
  #details = h("details", {class: "think"}, this.#summary, this.#thought);
  #text = "";
  #sources = []; // by character of the text

  constructor(element) {
    this.#element = element;
  }

  // Adds text, with its tokens as [length, source].
  add(text, marks) {
    this.#text += text;
    for (const [length, source] of marks) {
      for (let i = 0; i < length; i++) this.#sources.push(source);
    }
  }

  paint() {
    const {start, end, rest} = thought(this.#text);
    if (this.#text.slice(start, end).trim()) this.#paintThought(start, end, end < rest);
    this.#paintInto(this.#element, this.#painted, blocks(this.#text, rest));
  }

  #paintThought(start, end, closed) {
    if (!this.#details.parentNode) this.#element.prepend(this.#details);
    this.#paintInto(this.#thought, this.#paintedThought, blocks(this.#text, start, end));
    const title = closed ? "Reasoning" : "Thinking …";
    if (this.#summary.textContent === title) return;
    this.#summary.textContent = title;
    this.#details.open = !closed;
  }

  #paintInto(element, painted, found) {
    let n = 0;
    while (n < found.length && painted[n]?.key === key(found[n])) n += 1;
    for (const {node} of painted.splice(n)) node.remove();
    for (const block of found.slice(n)) {
      const node = this.#block(block);
      painted.push({key: key(block), node});
      element.append(node);
    }
  }

  #block(block) {
    switch (block.type) {
      case "heading":
        return h("h3", {class: `level-${block.level}`}, ...this.#inline(block.lines));
      case "code":
        return this.#code(block);
      case "rule":
        return h("hr");
      case "table":
        return this.#table(block);
      case "quote":
        return h("blockquote", {}, ...block.blocks.map((each) => this.#block(each)));
      case "list": {
        const items = block.items.map(({done, blocks}) =>
          h("li", {class: done !== null && "task"}, tick(done), ...blocks.map((each) => this.#block(each))),
        );
        return block.ordered ? h("ol", {start: block.first}, ...items) : h("ul", {}, ...items);
      }
      default:
        return h("p", {}, ...this.#inline(block.lines));
    }
  }

  #code({language, lines}) {
    const texts = lines.map(({start, end}) => this.#text.slice(start, end));
    const leaf = (i, text, dress) => this.#leaf(text, (j) => lines[i].start + j, dress);
    return codeBlock(language, texts, leaf);
  }

  #table({align, rows: [names, ...rows]}) {
    const cell = (tag, scope) => (range, i) =>
      h(tag, {scope, class: align[i] || false}, ...this.#inline([range]));
    const body = rows.map((row) => h("tr", {}, ...row.map(cell("td"))));
    return h(
      "div",
      {class: "table", tabindex: 0, role: "group", "aria-label": "Table"},
      h("table", {}, h("thead", {}, h("tr", {}, ...names.map(cell("th", "col")))), h("tbody", {}, ...body)),
    );
  }

  #inline(lines) {
    const nodes = (tree) => tree.flatMap((each) => (each.tag ? this.#mark(each, nodes) : leaf(each)));
    const leaf = ({text, at}) => this.#leaf(text, (i) => at[i]);
    return nodes(inline(this.#text, lines));
  }

  #mark({tag, href, latex, children}, nodes) {
    if (latex) return this.#formula(formula(latex, tag === "block"), children[0].at) ?? nodes(children);
    const safe = tag === "a" && {href, target: "_blank", rel: "noopener noreferrer"};
    return h(tag, safe || {}, ...nodes(children));
  }

  // A formula is marked if all of it is from one source.
  #formula(element, at) {
    const sources = new Set(at.map((i) => this.#sources[i] ?? OWN));
    const [source] = sources;
    if (!element || sources.size > 1 || source === OWN) return element;
    return h("span", {class: "from", "data-source": source, title: meaning(source)}, element);
  }

  // Text nodes and marked spans for characters that are from these places. White space around
  // what is marked is not, so that marks do not hang over the ends of lines.
  // dress(from, to): nodes for a part of the text.
  #leaf(text, place, dress = (from, to) => [text.slice(from, to)]) {
    const found = [];
    for (let from = 0, to = 0; from < text.length; from = to) {
      const source = this.#sources[place(from)] ?? OWN;
      while (to < text.length && (this.#sources[place(to)] ?? OWN) === source) to += 1;
      const piece = text.slice(from, to);
      const shown = source === OWN ? "" : piece.trim();
      if (!shown) {
        found.push(...dress(from, to));
        continue;
      }
      const start = from + piece.indexOf(shown);
      const end = start + shown.length;
      const mark = h("span", {class: "from", "data-source": source, title: meaning(source)}, ...dress(start, end));
      found.push(...dress(from, start), mark, ...dress(end, to));
    }
    return found;
  }
}

const tick = (done) =>
  done !== null && h("input", {type: "checkbox", disabled: true, checked: done, "aria-label": done ? "Done" : "To do"});

// Ranges of reasoning and answer. Some templates write the first tag
// themselves, so an answer may have the second tag alone.
function thought(text) {
  const begin = text.search(/\S/);
  const start = text.startsWith(THINK, begin) ? begin + THINK.length : 0;
  const end = text.indexOf(THOUGHT);
  const isThought = start || (end >= 0 && !text.slice(0, end).includes(THINK));
  if (!isThought) return {start: 0, end: 0, rest: 0};
  if (end < 0) return {start, end: text.length, rest: text.length};
  return {start, end, rest: end + THOUGHT.length};
}

// Its range identifies a block: the text before its end never changes.
const key = ({type, start, end}) => `${type} ${start} ${end}`;

// The user's text, unchanged except for blocks of code.
export function typed(text) {
  const nodes = [];
  let at = 0;
  const plain = (end) => {
    const part = text.slice(at, end).replace(/^\n+|\n+$/g, "");
    if (part.trim()) nodes.push(h("p", {class: "typed"}, part));
  };
  for (const {type, start, end, language, lines} of blocks(text)) {
    if (type !== "code") continue;
    plain(start);
    nodes.push(codeBlock(language, lines.map((line) => text.slice(line.start, line.end))));
    at = end;
  }
  plain(text.length);
  return nodes;
}
