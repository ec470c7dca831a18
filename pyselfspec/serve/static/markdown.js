// A small Markdown parser: blocks and inline marks as trees of ranges into the text.
// Creates no elements. A leaf has the places of its characters in the text, by which they are
// coloured.
//
// Blocks: {type: "p" | "heading" | "code" | "quote" | "list" | "rule" | "table", start, end, ...}.
// Lines: {start, end}, what is left of a line of the text when markers are taken off.

import {blank, cut, linesOf, of, run, spaces} from "./lines.js";
import {startsTable, table} from "./tables.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(?=\S)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +)(?=\S)/;
const TASK = /^\[([ xX])\] +(?=\S)/; // at the beginning of an item
const N_INLINE = 20000; // characters; marks in longer paragraphs stay text
const DEEPEST = 8; // levels of nested quotes and lists

export function blocks(text, from = 0, to = text.length) {
  return parsed(text, linesOf(text, from, to), 0);
}

function parsed(text, lines, depth) {
  const found = [];
  for (let i = 0; i < lines.length; ) {
    i += blank(text, lines[i]) ? 1 : block(text, lines, i, depth, found);
  }
  return found;
}

// Puts the block that begins with line i into found; returns how many lines it has.
function block(text, lines, i, depth, found) {
  const line = of(text, lines[i]);
  const add = (type, n, fields) => {
    found.push({type, start: lines[i].start, end: lines[i + n - 1].end, ...fields});
    return n;
  };
  const fence = FENCE.exec(line);
  if (fence) return add("code", ...fenced(text, lines, i, fence));
  const heading = HEADING.exec(line);
  if (heading) {
    const rest = {start: lines[i].start + heading[0].length, end: lines[i].end};
    return add("heading", 1, {level: heading[1].length, lines: [rest]});
  }
  if (RULE.test(line)) return add("rule", 1, {});
  if (depth < DEEPEST && QUOTE.test(line)) {
    const inner = run(lines, i, (each) => QUOTE.test(of(text, each)));
    const bare = inner.map((each) => cut(each, QUOTE.exec(of(text, each))[0].length));
    return add("quote", inner.length, {blocks: parsed(text, bare, depth + 1)});
  }
  if (depth < DEEPEST && ITEM.test(line)) return add("list", ...list(text, lines, i, depth));
  const ends = (at) => starts(of(text, lines[at]));
  if (startsTable(text, lines, i)) return add("table", ...table(text, lines, i, ends));
  const rest = run(lines, i + 1, (each, _, at) => {
    return !blank(text, each) && !ends(at) && !startsTable(text, lines, at);
  });
  return add("p", rest.length + 1, {lines: [lines[i], ...rest]});
}

function fenced(text, lines, i, [, marks, language]) {
  const closes = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  const inner = run(lines, i + 1, (each) => !closes.test(of(text, each)));
  const closed = i + 1 + inner.length < lines.length;
  return [inner.length + 1 + closed, {language, lines: inner}];
}

function list(text, lines, i, depth) {
  const [, , first] = ITEM.exec(of(text, lines[i]));
  const ordered = first.length > 1;
  const items = [];
  let n = 0;
  while (i + n < lines.length) {
    const mark = ITEM.exec(of(text, lines[i + n]));
    if (!mark || mark[2].length > 1 !== ordered) break;
    const width = mark[0].length;
    const task = TASK.exec(of(text, lines[i + n]).slice(width));
    const head = cut(lines[i + n], width + (task?.[0].length ?? 0));
    const behind = run(lines, i + n + 1, (each, before) => {
      if (blank(text, each) || indented(text, each, Math.min(width, 2))) return true;
      return !blank(text, before) && !starts(of(text, each)); // the paragraph continues
    });
    n += 1 + behind.length;
    while (behind.length && blank(text, behind.at(-1))) behind.pop();
    const inner = behind.map((each) => cut(each, spaces(text, each, width)));
    const done = task && task[1] !== " "; // null for an item that is no task
    items.push({done, blocks: parsed(text, [head, ...inner], depth + 1)});
  }
  while (blank(text, lines[i + n - 1])) n -= 1;
  return [n, {ordered, first: parseInt(first, 10), items}];
}

const starts = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((mark) => mark.test(line));
const indented = (text, line, n) => spaces(text, line, n) === n;

// Inline marks, one alternative each; the group with the content is named.
const INLINE = new RegExp(
  [
    "(?<ticks>`+)(?<code>[^]*?[^`])\\k<ticks>(?!`)",
    "\\\\\\((?<math>[^]+?)\\\\\\)",
    "\\\\\\[(?<block>[^]+?)\\\\\\]",
    "\\$\\$(?<block2>[^$]+?)\\$\\$",
    "(?<![\\w$\\\\])\\$(?=[^\\s$])(?<math2>[^$\\n]*?[^\\s$\\\\])\\$(?![\\w$])",
    "\\*\\*(?=\\S)(?<strong>[^]*?[^\\s])\\*\\*",
    "(?<!\\w)__(?=\\S)(?<strong2>[^]*?[^\\s])__(?!\\w)",
    "\\*(?=[^\\s*])(?<em>[^*]*?[^\\s*])\\*",
    "(?<!\\w)_(?=[^\\s_])(?<em2>[^_]*?[^\\s_])_(?!\\w)",
    "\\[(?<a>[^\\]\\n]+)\\]\\((?<href>https?://[^\\s()<>]+)\\)",
    "\\\\(?<escaped>[!-/:-@\\[-`{-~])",
  ].join("|"),
  "dg",
);

// The inline tree of some lines: leaves {text, at}, at being the place in the text of each
// character, and {tag: "code" | "strong" | "em" | "a" | "math" | "block", href, children}. Formulas
// have their LaTeX, too, which their children show as it is in the text.
export function inline(text, lines) {
  let joined = "";
  const at = [];
  lines.forEach((line, i) => {
    if (i) joined += "\n", at.push(lines[i - 1].end);
    for (let j = line.start; j < line.end; j++) {
      if (line.isCell && text.startsWith("\\|", j)) continue; // a bar that ends no cell, even in code
      joined += text[j];
      at.push(j);
    }
  });
  if (joined.length > N_INLINE) return [{text: joined, at}];
  return marked(joined, at);
}

function marked(text, at, depth = 0) {
  const found = [];
  const piece = (from, to) => ({text: text.slice(from, to), at: at.slice(from, to)});
  const leaf = (from, to) => to > from && found.push(piece(from, to));
  let from = 0;
  for (const match of depth < DEEPEST ? text.matchAll(INLINE) : []) {
    const [name, [start, end]] = Object.entries(match.indices.groups).find(
      ([group, range]) => range && group !== "ticks",
    );
    leaf(from, match.index);
    from = match.index + match[0].length;
    const tag = name.replace("2", "");
    const inner = piece(start, end);
    if (tag === "escaped") leaf(start, end);
    else if (tag === "math" || tag === "block") {
      found.push({tag, latex: inner.text, children: [piece(match.index, from)]});
    } else {
      const children = tag === "code" ? [inner] : marked(inner.text, inner.at, depth + 1);
      found.push({tag, href: match.groups.href, children});
    }
  }
  leaf(from, text.length);
  return found;
}
