// Lines of a text as ranges {start, end} into it: what Markdown's blocks are made of.

export function linesOf(text, from = 0, to = text.length) {
  const lines = [];
  for (let start = from; start < to; ) {
    const at = text.indexOf("\n", start);
    const end = at < 0 || at > to ? to : at;
    lines.push({start, end});
    start = end + 1;
  }
  return lines;
}

export const of = (text, line) => text.slice(line.start, line.end);
export const cut = (line, n) => ({start: line.start + n, end: line.end});
export const blank = (text, line) => !of(text, line).trim();

// The lines from i on for which it holds; it is given a line, the one before and its number.
export function run(lines, i, holds) {
  let end = i;
  while (end < lines.length && holds(lines[end], lines[end - 1], end)) end += 1;
  return lines.slice(i, end);
}

// Spaces that a line begins with, at most so many.
export function spaces(text, line, most) {
  return Math.min(most, /^ */.exec(of(text, line))[0].length);
}
