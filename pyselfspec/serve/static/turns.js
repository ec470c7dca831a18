// Elements of questions and answers. Their buttons call `actions`: edit(question, text), and for
// answers again, goOn, compare, and choose(answer, version).

import {isUnfinished, speed, STOPPED} from "./answer.js";
import {cards, figures} from "./cards.js";
import {perSecond} from "./charts.js";
import {button, h, icon} from "./dom.js";
import {Painter, typed} from "./paint.js";
import {thumbnails} from "./pictures.js";
import {shown} from "./store.js";
import {copy} from "./toast.js";

// kind: "acts" for buttons that are disabled while an answer is generated.
const tool = (name, text, onclick, kind = "acts") =>
  button({class: `tool ${kind}`, onclick, title: text}, icon(name), h("span", {}, text));

const [N_CHARS, N_LINES] = [1500, 15]; // of a message that is shown whole

export function question(message, actions) {
  const bubble = h("div", {class: "bubble"}, thumbnails(message.pictures), ...typed(message.text));
  const isLong = message.text.length > N_CHARS || message.text.split("\n").length > N_LINES;
  const element = h(
    "article",
    {class: "turn question", "aria-label": "You"},
    bubble,
    isLong && folding(bubble),
    h(
      "div",
      {class: "tools"},
      tool("copy", "Copy", () => copy(message.text), ""),
      tool("edit", "Edit", () => element.replaceChildren(editor(message, actions, restore))),
    ),
  );
  const parts = [...element.children];
  const restore = () => {
    element.replaceChildren(...parts);
    parts.at(-1).lastElementChild.focus();
  };
  return {element};
}

// Folds an element; returns the button that shows all of it.
function folding(element) {
  element.classList.add("folded");
  const onclick = ({target}) => {
    const isFolded = element.classList.toggle("folded");
    target.setAttribute("aria-expanded", String(!isFolded));
    target.textContent = isFolded ? "Show all" : "Show less";
  };
  return button({class: "quiet-button", "aria-expanded": "false", onclick}, "Show all");
}

function editor(message, actions, restore) {
  const field = h("textarea", {"aria-label": "Edit your message", rows: 3}, message.text);
  const form = h(
    "form",
    {class: "editor"},
    field,
    h(
      "div",
      {class: "actions"},
      button({class: "button", onclick: restore}, "Cancel"),
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

// The element of an answer, which shows one of its versions.
export class AnswerView {
  #message;
  #actions;
  #prose = h("div", {class: "prose"});
  #below = h("div", {class: "below"});
  #painter;
  #due = null; // the answer to paint in the next frame
  #open = false;
  #compares = false; // the button that was pressed has been replaced
  element = h("article", {class: "turn answer", "aria-label": "Answer"}, this.#prose, this.#below);

  constructor(message, actions) {
    [this.#message, this.#actions] = [message, actions];
    this.show();
    this.done();
  }

  get #answer() {
    return shown(this.#message);
  }

  // Shows the chosen version from its beginning.
  show() {
    const {text, marks} = this.#answer;
    this.#prose.replaceChildren();
    this.#painter = new Painter(this.#prose);
    this.#painter.add(text, marks);
    this.#painter.paint();
  }

  // Shows text added to the answer; calls painted() when it is visible.
  grow(answer, text, marks, painted) {
    this.#painter.add(text, marks);
    if (this.#due) return;
    this.#due = answer;
    requestAnimationFrame(() => {
      if (!this.#due) return;
      this.#due = null;
      this.#painter.paint();
      this.busy(answer);
      painted();
    });
  }

  // Shows the progress of an answer, which is not visible yet if it replaces another one.
  // share: of the prompt that has been read, null before the first report.
  busy(answer, share = null) {
    this.element.setAttribute("aria-busy", "true");
    this.element.classList.toggle("replacing", answer !== this.#answer);
    const reading = share === null ? "Reading the prompt …" : `Reading the prompt: ${Math.floor(100 * share)} %`;
    const text = answer.marks.length > answer.part.marks ? figures(answer) : reading;
    this.#below.replaceChildren(h("p", {class: "figures quiet"}, text));
  }

  done() {
    this.#due = null;
    this.#painter.paint();
    this.element.removeAttribute("aria-busy");
    this.element.classList.remove("replacing");
    const answer = this.#answer;
    const isMarked = answer.marks.length > 0;
    const compare = isMarked && tool("scale", "Compare with plain", () => this.#compare());
    const parts = [
      answer.error ? this.#failure() : note(answer),
      isMarked && this.#details(),
      h("div", {class: "tools"}, ...this.#tools(), compare),
    ];
    this.#below.replaceChildren(...parts.filter(Boolean));
    if (this.#compares && document.activeElement === document.body) {
      compare.focus({preventScroll: true});
    }
    this.#compares = false;
  }

  #tools() {
    const [message, answer] = [this.#message, this.#answer];
    const {again, goOn} = this.#actions;
    return [
      this.#versions(),
      !answer.error && isUnfinished(answer) && tool("on", "Continue", () => goOn(message)),
      answer.text && tool("copy", "Copy", () => copy(answer.text), ""),
      !answer.error && tool("again", "Again", () => again(message)),
    ];
  }

  #versions() {
    const {at, versions} = this.#message;
    if (versions.length < 2) return null;
    const step = (to, name, label) => {
      const attributes = {class: "tool", "aria-label": label, disabled: !versions[to]};
      return button({...attributes, onclick: () => this.#choose(to)}, icon(name));
    };
    return h(
      "span",
      {class: "versions"},
      step(at - 1, "back", "Earlier version"),
      h("span", {class: "number"}, `${at + 1} / ${versions.length}`),
      step(at + 1, "forth", "Later version"),
    );
  }

  #choose(at) {
    this.#actions.choose(this.#message, at);
    this.#below.querySelector(".versions button:not(:disabled)")?.focus({preventScroll: true});
  }

  #failure() {
    const {again, goOn} = this.#actions;
    const offer = (text, kind, does) =>
      button({class: `button ${kind}`, onclick: () => does(this.#message)}, text);
    return h(
      "div",
      {class: "notice failure", role: "alert"},
      h("p", {}, this.#answer.error),
      h(
        "div",
        {class: "actions"},
        offer("Try again", "", again),
        isUnfinished(this.#answer) && offer("Continue", "primary", goOn),
      ),
    );
  }

  #details() {
    const body = h("div", {class: "cards"});
    const fill = () => body.replaceChildren(...cards(this.#answer, () => this.#compare()));
    const details = h(
      "details",
      {open: this.#open},
      h("summary", {}, h("span", {class: "figures"}, figures(this.#answer))),
      body,
    );
    details.addEventListener("toggle", () => {
      if (details.open === this.#open) return; // unchanged
      this.#open = details.open;
      if (!details.open) return;
      fill();
      details.scrollIntoView({block: "nearest"});
    });
    if (this.#open) fill();
    return details;
  }

  #compare() {
    this.#open = this.#compares = true;
    this.#actions.compare(this.#message);
  }

  // Shows the progress of the comparison with plain decoding.
  comparing(plain) {
    const now = speed(plain);
    const text = `Plain decoding: ${plain.marks.length} tokens${now ? `, ${perSecond(now)}` : ""} …`;
    this.#below.replaceChildren(h("p", {class: "figures quiet"}, text));
  }
}

// Why an answer ended, unless the model ended it.
function note({finish, marks, part, asked: {max_tokens}}) {
  const said = (text) => h("p", {class: "note quiet"}, text);
  if (finish === STOPPED || finish === null) return said("The answer was stopped here.");
  if (finish !== "length") return null;
  if (max_tokens === null || marks.length - part.marks < max_tokens) {
    return said("The answer was cut here: it reached the limit of the server.");
  }
  return said(`The answer was cut after ${max_tokens} tokens, the limit in the settings.`);
}
