// Statistics of an answer: a line, and the cards that open below it.

import {speed} from "./answer.js";
import {acceptance, layers, perSecond, percent, shares, speeds} from "./charts.js";
import {button, h} from "./dom.js";
import {counts, OWN} from "./sources.js";

// Tokens, speed, and how that compares with plain decoding: measured, or else estimated.
export function figures(answer) {
  const {marks, statistics, plain, part, asked} = answer;
  const n = statistics?.n_generated ?? marks.length;
  const parts = [n === 1 ? "1 token" : `${n} tokens`];
  const now = speed(answer);
  if (now) parts.push(perSecond(now));
  const known = statistics ?? part.statistics; // of the latest part, if not of all
  const [measured, estimated] = [ratioOf(plain), known?.estimated_speedup];
  if (measured) parts.push(`${measured.toFixed(2)}x plain decoding (measured)`);
  else if (estimated) parts.push(`about ${estimated.toFixed(1)}x plain decoding`);
  else if (known?.n_drafted === 0 && asked.draft !== null) parts.push("no drafts");
  return parts.join(" · ");
}

const ratioOf = (plain) => (plain?.fast && plain.speed ? plain.fast / plain.speed : null);

// compare: requests the same answer without drafts.
export function cards(answer, compare) {
  const {statistics, plain} = answer;
  const found = [
    ["Against plain decoding", ...(plain ? comparison(answer) : invitation(statistics, compare))],
    ["Tokens by source", ...shares(counts(answer))],
  ];
  if (statistics?.n_drafted) {
    found.push(["Accepted by position, %", ...accepted(statistics)]);
    found.push(["Layers that drafts ran", ...ran(statistics)]);
  }
  return found.map(([title, ...content]) =>
    h("section", {class: "card"}, h("h3", {}, title), ...content),
  );
}

const MASKED = "Drafts by a part of the model skipped the empty blocks. Every verification pass ran all blocks.";
const UNMASKED = "No drafter skipped layers. Every pass ran all layers.";

const ran = ({mask}) =>
  mask ? [...layers(mask), small(MASKED)] : [small(UNMASKED)];

const small = (text) => h("p", {class: "quiet small"}, text);

function accepted(statistics) {
  const {n_accepted, n_drafted, n_generated, n_steps} = statistics;
  const share = percent(n_accepted, n_drafted);
  const passes = n_steps ? ` ${(n_generated / n_steps).toFixed(2)} tokens per pass of the full model.` : "";
  const said = `${n_accepted} of ${n_drafted} draft tokens were accepted (${share}).${passes}`;
  return [acceptance(statistics), small(said)];
}

function invitation(statistics, compare) {
  const estimated = statistics?.estimated_speedup;
  return [
    estimated && h("p", {class: "verdict"}, h("b", {}, `About ${estimated.toFixed(1)} times the speed`), ", estimated from the plain passes of this answer."),
    small("To measure it, the same prompt and seed are sent again without drafts. The text should not change, only the speed."),
    h("p", {}, button({class: "button", onclick: compare}, "Compare with plain")),
  ];
}

function comparison({plain}) {
  const {fast, speed: slow, fork, n} = plain;
  const said =
    fork === null
      ? `The same text, all ${n} tokens.`
      : `The texts differ from character ${fork + 1} on.`;
  const ratio = ratioOf(plain) ? `${ratioOf(plain).toFixed(2)} times the speed. ` : "";
  const bars = ratio && speeds([["with drafts", fast, "ink"], ["plain", slow, OWN]]);
  return [bars, h("p", {class: "verdict"}, h("b", {}, ratio), said)];
}
