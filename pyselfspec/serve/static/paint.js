// The text of an answer as elements: Markdown's, its characters marked by where they are from.

import {h} from "./dom.js";
import {blocks, inline} from "./markdown.js";
import {OWN, meaning} from "./sources.js";

// Keeps what has not changed while the text grows.
export class Painter {
  #element;
  #painted = []; // {key, node} by block
  #text = "";
  #sources = []; // by character of the text

  constructor(element) {
    this.#element = element;
  }

  // More text, and the tokens it is from as [length, source].
  add(text, marks) {
    this.#text += text;
    for (const [length, source] of marks) {
      for (let i = 0; i < length; i++) this.#sources.push(source);
    }
  }

  paint() {
    const text = this.#text;
    const found = blocks(text);
    let n = 0;
    while (n < found.length && this.#painted[n]?.key === key(found[n])) n += 1;
    for (const {node} of this.#painted.splice(n)) node.remove();
    for (const block of found.slice(n)) {
      const node = this.#block(block);
      this.#painted.push({key: key(block), node});
      this.#element.append(node);
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
      case "quote":
        return h("blockquote", {}, ...block.blocks.map((each) => this.#block(each)));
      case "list": {
        const items = block.items.map((item) =>
          h("li", {}, ...item.map((each) => this.#block(each))),
        );
        return block.ordered ? h("ol", {start: block.first}, ...items) : h("ul", {}, ...items);
      }
      default:
        return h("p", {}, ...this.#inline(block.lines));
    }
  }

  #code({language, lines}) {
    const code = h("code");
    lines.forEach(({start, end}, i) => {
      if (i) code.append("\n");
      code.append(...this.#leaf(this.#text.slice(start, end), (j) => start + j));
    });
    return h(
      "div",
      {class: "code"},
      h("div", {class: "code-head"}, h("span", {}, language || "text"), copyCode(code)),
      h("pre", {tabindex: 0, role: "region", "aria-label": `Code, ${language || "text"}`}, code),
    );
  }

  #inline(lines) {
    const nodes = (tree) => tree.flatMap((each) => (each.tag ? [this.#mark(each, nodes)] : leaf(each)));
    const leaf = ({text, at}) => this.#leaf(text, (i) => at[i]);
    return nodes(inline(this.#text, lines));
  }

  #mark({tag, href, children}, nodes) {
    const safe = tag === "a" && {href, target: "_blank", rel: "noopener noreferrer"};
    return h(tag, safe || {}, ...nodes(children));
  }

  // Text nodes and marked spans for characters that are from these places. White space around
  // what is marked is not, so that marks do not hang over the ends of lines.
  #leaf(text, place) {
    const found = [];
    for (let from = 0, to = 0; from < text.length; from = to) {
      const source = this.#sources[place(from)] ?? OWN;
      while (to < text.length && (this.#sources[place(to)] ?? OWN) === source) to += 1;
      const piece = text.slice(from, to);
      const shown = source === OWN ? "" : piece.trim();
      if (!shown) {
        found.push(piece);
        continue;
      }
      const mark = h("span", {class: "from", "data-source": source, title: meaning(source)}, shown);
      const at = piece.indexOf(shown);
      found.push(piece.slice(0, at), mark, piece.slice(at + shown.length));
    }
    return found;
  }
}

// A block's place says all: the text before its end never changes.
const key = ({type, start, end}) => `${type} ${start} ${end}`;

function copyCode(code) {
  const button = h("button", {type: "button", class: "quiet-button"}, "Copy");
  button.addEventListener("click", () =>
    button.dispatchEvent(new CustomEvent("copytext", {bubbles: true, detail: code.textContent})),
  );
  return button;
}
