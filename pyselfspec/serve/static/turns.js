// How questions and answers look. What their buttons do is told by `actions`: copy(text),
// edit(message, text), regenerate(message), compare(message), stop().

import {speed, STOPPED} from "./answer.js";
import {acceptance, layers, perSecond, percent, shares, speeds} from "./charts.js";
import {h, icon} from "./dom.js";
import {Painter} from "./paint.js";
import {counts, OWN} from "./sources.js";

const tool = (name, text, onclick) =>
  h("button", {class: "tool", type: "button", onclick, title: text}, icon(name), h("span", {}, text));

export function question(message, actions) {
  const bubble = h("div", {class: "bubble"}, message.text);
  const element = h(
    "article",
    {class: "turn question", "aria-label": "You"},
    bubble,
    h(
      "div",
      {class: "tools"},
      tool("copy", "Copy", () => actions.copy(message.text)),
      tool("edit", "Edit", () => element.replaceChildren(editor(message, actions, restore))),
    ),
  );
  const shown = [...element.children];
  const restore = () => {
    element.replaceChildren(...shown);
    shown[1].lastElementChild.focus();
  };
  return element;
}

function editor(message, actions, restore) {
  const field = h("textarea", {"aria-label": "Edit your message", rows: 3});
  field.value = message.text;
  const form = h(
    "form",
    {class: "editor"},
    field,
    h(
      "div",
      {class: "actions"},
      h("button", {class: "button", type: "button", onclick: restore}, "Cancel"),
      h("button", {class: "button primary", type: "submit"}, "Send"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) actions.edit(message, field.value.trim());
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") event.stopPropagation(), restore();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === field) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  queueMicrotask(() => field.focus());
  return form;
}

// An answer as it grows, and afterwards.
export class AnswerView {
  #message;
  #props;
  #actions;
  #prose = h("div", {class: "prose"});
  #below = h("div", {class: "below"});
  #painter = new Painter(this.#prose);
  #due = false; // to be painted with the next frame
  #open = false;
  #compares = false; // the button that was pressed has gone meanwhile
  element = h("article", {class: "turn answer", "aria-label": "Answer"}, this.#prose, this.#below);

  constructor(message, props, actions) {
    [this.#message, this.#props, this.#actions] = [message, props, actions];
    this.#painter.add(message.text, message.marks);
    this.#painter.paint();
  }

  // After text has been added to the message; painted() is called when it can be seen.
  grow(text, marks, painted) {
    this.#painter.add(text, marks);
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => {
      if (!this.#due) return;
      this.#due = false;
      this.#painter.paint();
      this.busy();
      painted();
    });
  }

  busy() {
    const {marks} = this.#message;
    this.element.setAttribute("aria-busy", "true");
    const text = marks.length ? figures(this.#message) : "Reading the prompt …";
    this.#below.replaceChildren(h("p", {class: "figures quiet"}, text));
  }

  done() {
    const message = this.#message;
    this.#due = false;
    this.#painter.paint();
    this.element.removeAttribute("aria-busy");
    const compare = tool("scale", "Compare with plain", () => this.#compare());
    const tools = [
      message.text && tool("copy", "Copy", () => this.#actions.copy(message.text)),
      !message.error && tool("again", "Again", () => this.#actions.regenerate(message)),
      message.marks.length && compare,
    ];
    this.#below.replaceChildren(
      ...notes(message).map((text) => h("p", {class: "note quiet"}, text)),
      ...(message.error ? [this.#failure()] : []),
      ...(message.marks.length ? [this.#details()] : []),
      h("div", {class: "tools"}, ...tools.filter(Boolean)),
    );
    if (this.#compares && document.activeElement === document.body) {
      compare.focus({preventScroll: true});
    }
    this.#compares = false;
  }

  #failure() {
    const again = () => this.#actions.regenerate(this.#message);
    return h(
      "div",
      {class: "notice failure", role: "alert"},
      h("p", {}, this.#message.error),
      h("button", {class: "button", type: "button", onclick: again}, "Try again"),
    );
  }

  #details() {
    const body = h("div", {class: "cards"});
    const fill = () => {
      if (!body.childElementCount) body.append(...this.#cards());
    };
    const details = h(
      "details",
      {class: "how", open: this.#open},
      h("summary", {}, h("span", {class: "figures"}, figures(this.#message))),
      body,
    );
    details.addEventListener("toggle", () => {
      this.#open = details.open;
      if (details.open) fill();
    });
    if (this.#open) fill();
    return details;
  }

  #cards() {
    const message = this.#message;
    const {statistics} = message;
    const {n_layer, mask} = this.#props();
    const found = [
      ["Against plain decoding", ...(message.plain ? comparison(message) : this.#invitation())],
      ["Tokens by source", shares(counts(message))],
    ];
    if (statistics?.n_drafted) {
      const {n_accepted, n_drafted} = statistics;
      const said = `${n_accepted} of ${n_drafted} guesses were right (${percent(n_accepted, n_drafted)}).`;
      found.push(["Accepted by position, %", acceptance(statistics), h("p", {class: "quiet small"}, said)]);
    }
    if (n_layer) {
      found.push([
        "Layers that ran",
        layers(n_layer, mask),
        h("p", {class: "quiet small"}, mask ? MASKED : UNMASKED),
      ]);
    }
    return found.map(([title, ...content]) =>
      h("section", {class: "card"}, h("h3", {}, title), ...content),
    );
  }

  #invitation() {
    const compare = () => this.#compare();
    return [
      h("p", {class: "quiet small"}, "The same prompt and seed without guesses: the text should not change, only the speed."),
      h("p", {}, h("button", {class: "button", type: "button", onclick: compare}, "Compare with plain")),
    ];
  }

  #compare() {
    this.#open = this.#compares = true;
    this.#actions.compare(this.#message);
  }

  // While the plain run goes on.
  comparing(plain) {
    const now = speed(plain);
    const text = `Plain decoding: ${plain.marks.length} tokens${now ? `, ${perSecond(now)}` : ""} …`;
    this.#below.replaceChildren(h("p", {class: "figures quiet"}, text));
  }
}

const MASKED = "When a part of the model guesses, it leaves out the empty blocks. Every pass that checks guesses runs all of them.";
const UNMASKED = "No layer mask is in use, so every pass runs every block.";

// Tokens, speed, and what drafts did for it, in a line.
export function figures(message) {
  const {marks, statistics} = message;
  const n = statistics?.n_generated ?? marks.length;
  const parts = [n === 1 ? "1 token" : `${n} tokens`];
  const now = speed(message);
  if (now) parts.push(perSecond(now));
  if (message.plain?.speed && now) parts.push(`${(now / message.plain.speed).toFixed(2)}x plain`);
  if (statistics?.n_drafted) {
    parts.push(`${statistics.tokens_per_step.toFixed(2)} tokens per pass`);
  }
  return parts.join(" · ");
}

function comparison(message) {
  const [fast, {speed: slow, fork, n}] = [speed(message), message.plain];
  const said =
    fork === null
      ? `The same text, all ${n} tokens.`
      : `The texts differ from character ${fork + 1} on.`;
  const ratio = fast && slow ? `${(fast / slow).toFixed(2)} times the speed. ` : "";
  const bars = fast && slow ? [speeds([["with guesses", fast, "ink"], ["plain", slow, OWN]])] : [];
  return [...bars, h("p", {class: "verdict"}, h("b", {}, ratio), said)];
}

function notes({finish, error, marks, asked}) {
  if (error) return [];
  if (finish === STOPPED || finish === null) return ["The answer was stopped here."];
  if (finish !== "length") return [];
  if (marks.length < asked.max_tokens) return ["The context is full, so the answer ends here."];
  return [`The answer ends at ${asked.max_tokens} tokens, the longest that the settings allow.`];
}
