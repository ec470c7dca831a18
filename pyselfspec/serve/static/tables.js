// Tables of Markdown as GitHub writes them: a row of names, a row of dashes, rows of cells.
//
// {align: ["" | "left" | "center" | "right"], rows: [[{start, end}, ...], ...]}, the first row being
// that of the names; a cell is a range of the text.

import {blank, of, run} from "./lines.js";

const DASHES = /^:?-+:?$/;
const N_COLUMNS = 64; // a wider one stays text

// Whether a table begins with line i.
export function startsTable(text, lines, i) {
  if (i + 1 >= lines.length || !of(text, lines[i]).includes("|")) return false;
  const dashes = cells(text, lines[i + 1]);
  const isRow = dashes.length <= N_COLUMNS && dashes.every((cell) => DASHES.test(of(text, cell)));
  return isRow && cells(text, lines[i]).length === dashes.length;
}

// How many lines the table has that begins with line i, and its fields. ends(i): whether another
// block begins there.
export function table(text, lines, i, ends) {
  const align = cells(text, lines[i + 1]).map((cell) => alignment(of(text, cell)));
  const body = run(lines, i + 2, (line, _, at) => !blank(text, line) && !ends(at));
  const rows = [lines[i], ...body].map((line) => filled(cells(text, line), align.length, line.end));
  return [2 + body.length, {align, rows}];
}

const alignment = (dashes) =>
  ["", "left", "right", "center"][dashes.startsWith(":") + 2 * dashes.endsWith(":")];

// Rows may have fewer cells than names, and additional cells are left out.
function filled(row, n, end) {
  return Array.from({length: n}, (_, i) => row[i] ?? {start: end, end, isCell: true});
}

// Between bars that no backslash precedes; the outer bars may be missing.
function cells(text, line) {
  const bars = [...of(text, line).matchAll(/(?<!\\)\|/g)].map(({index}) => line.start + index);
  const ends = [line.start - 1, ...bars, line.end];
  const found = ends.slice(1).map((end, i) => trimmed(text, ends[i] + 1, end));
  if (bars.length && isEmpty(found[0])) found.shift();
  if (bars.length && found.length && isEmpty(found.at(-1))) found.pop();
  return found;
}

const isEmpty = ({start, end}) => start === end;

function trimmed(text, start, end) {
  while (start < end && /\s/.test(text[start])) start += 1;
  while (end > start && /\s/.test(text[end - 1])) end -= 1;
  return {start, end, isCell: true};
}
