// Small charts of one answer: sources of tokens, accepted draft tokens, layers of drafts.
// Each has a text alternative.

import {h, svg} from "./dom.js";
import {label} from "./sources.js";

export const percent = (part, whole) => `${Math.round((100 * part) / whole)} %`;

// A bar with a part for each [source, n] whose whole length stands for a total.
function bar(counts, total) {
  let x = 0;
  const parts = counts.map(([source, n]) => {
    const width = (1000 * n) / total;
    x += width;
    return svg("rect", {x: x - width, width, height: 12, class: "fill", "data-source": source});
  });
  const stretched = {viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true"};
  return svg("svg", {class: "bar", ...stretched}, ...parts);
}

// counts: [source, n]. A bar and a list.
export function shares(counts) {
  const total = counts.reduce((sum, [, n]) => sum + n, 0);
  const list = counts.map(([source, n]) =>
    h("li", {}, swatch(source), `${label(source)} `, h("b", {}, String(n)), ` ${percent(n, total)}`),
  );
  return [bar(counts, total), h("ul", {class: "chips"}, ...list)];
}

export function swatch(source) {
  return h("span", {class: "swatch", "data-source": source, "aria-hidden": "true"});
}

// statistics: of the server. By position in the draft: how many tokens were drafted, and how many
// of these accepted, by source.
export function acceptance(statistics) {
  const drafted = statistics.n_drafted_at;
  const accepted = statistics.n_accepted_at;
  const sources = Object.entries(statistics.sources ?? {});
  const [width, height, top] = [320, 96, 16];
  const step = Math.min(44, width / drafted.length);
  const wide = step * 0.64;
  const isRoomy = step > 19; // for numbers above and below the columns
  const scale = height / Math.max(...drafted);
  const columns = drafted.map((n, i) => {
    const x = i * step;
    const share = Math.round((100 * (accepted[i] ?? 0)) / n);
    let y = top + height;
    const parts = sources.map(([source, {n_accepted_at: at}]) => {
      const tall = (at[i] ?? 0) * scale;
      y -= tall;
      return svg("rect", {x, y, width: wide, height: tall, class: "fill", "data-source": source});
    });
    return svg(
      "g",
      {},
      svg("title", {}, `Position ${i + 1}: ${accepted[i] ?? 0} of ${n} accepted`),
      svg("rect", {x, y: top + height - n * scale, width: wide, height: n * scale, class: "ghost"}),
      ...parts,
      isRoomy && svg("text", {x: x + wide / 2, y: top + height - n * scale - 5}, String(share)),
      isRoomy && svg("text", {x: x + wide / 2, y: top + height + 16, class: "axis"}, String(i + 1)),
    );
  });
  const said = drafted.map((n, i) => `position ${i + 1}: ${accepted[i] ?? 0} of ${n}`).join(", ");
  return svg(
    "svg",
    {class: "columns", viewBox: `0 0 ${width} ${height + top + 22}`, width, role: "img", "aria-label": `Accepted draft tokens by position. ${said}`},
    ...columns,
  );
}

// The sublayers that a draft runs. mask: of the server's statistics.
export function layers({n_layer, skip_attn, skip_ffn}) {
  return [strip("attention", n_layer, skip_attn), strip("feed-forward", n_layer, skip_ffn)];
}

function strip(name, n_layer, skipped) {
  const cell = 10;
  const square = {y: 1, width: cell - 2, height: cell - 2, rx: 2};
  const blocks = Array.from({length: n_layer}, (_, i) =>
    svg("rect", {...square, x: i * cell + 1, class: skipped.includes(i) ? "skipped" : "runs"}),
  );
  const box = {viewBox: `0 0 ${n_layer * cell} ${cell}`, preserveAspectRatio: "xMinYMid"};
  return h(
    "div",
    {class: "strip"},
    h("span", {class: "quiet small"}, name),
    h("span", {class: "quiet small"}, `${n_layer - skipped.length} of ${n_layer}`),
    svg("svg", {...box, "aria-hidden": "true"}, ...blocks),
  );
}

// speeds: [name, tokens per second, source for the colour].
export function speeds(speeds) {
  const most = Math.max(...speeds.map(([, speed]) => speed));
  const rows = speeds.flatMap(([name, speed, source]) => [
    h("span", {class: "quiet small"}, name),
    bar([[source, speed]], most),
    h("b", {class: "number"}, perSecond(speed)),
  ]);
  return h("div", {class: "speeds"}, ...rows);
}

export const perSecond = (speed) => `${speed < 100 ? speed.toFixed(1) : Math.round(speed)} tokens/s`;
