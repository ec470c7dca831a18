// The page: which conversation is shown, what is being written, and what keys and buttons do.

import {ApiError, props as fetchProps} from "./api.js";
import {compare, newAnswer, write} from "./answer.js";
import {swatch} from "./charts.js";
import {byId, h, icon} from "./dom.js";
import {askForKey, openSettings} from "./panels.js";
import {label, meaning, OWN} from "./sources.js";
import * as store from "./store.js";
import {AnswerView, figures, question} from "./turns.js";

const EXAMPLES = {
  chat: [
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Tell me a short story about a lighthouse.",
    "List five rivers of Europe as JSON.",
  ],
  plain: ["Once upon a time", "The three best things about rain are", "def fibonacci(n):"],
};
const N_TITLE = 60; // characters
const NEAR = 80; // pixels from the end at which the view goes along
const THEMES = {auto: "as the system", light: "light", dark: "dark"};

let conversation = store.newConversation();
let props = {sources: [], chat: true}; // of the server, and whether it has a chat template
let ready; // a promise: the server has been asked what it is
let running = null; // an AbortController while something is being written
const elements = new Map(); // by message of the conversation
const views = new Map(); // of its answers

const message = byId("message");
const scroll = byId("scroll");
const actions = {copy, edit, regenerate, compare: comparePlain};

// --- the server

async function connect() {
  try {
    const found = await fetchProps();
    props = {...found, sources: found.sources ?? [], chat: Boolean(found.chat_template ?? true)};
    notice(props.chat ? "" : NO_TEMPLATE);
  } catch (error) {
    if (error.status === 401 && (await askForKey(error.message))) return connect();
    notice(error.message, "Try again", () => (ready = connect()));
  }
  describe();
}

const NO_TEMPLATE = "This model has no chat template, so it goes on with your text instead of answering it.";

function describe() {
  const {model, n_layer, n_ctx, chat} = props;
  byId("model").textContent = model ?? "pyselfspec";
  document.title = model ? `${model} · pyselfspec` : "pyselfspec";
  const number = (n) => n.toLocaleString("en");
  byId("facts").textContent = [
    n_layer && `${number(n_layer)} blocks`,
    n_ctx && `context ${number(n_ctx)}`,
  ].filter(Boolean).join(" · ");
  message.placeholder = chat ? "Message" : "A text to go on with";
  byId("examples").replaceChildren(
    ...EXAMPLES[chat ? "chat" : "plain"].map((text) =>
      h("li", {}, h("button", {class: "example", type: "button", onclick: () => send(text)}, text)),
    ),
  );
}

function notice(text, button, onclick) {
  const again = button && h("button", {class: "button", type: "button", onclick}, button);
  byId("notice").replaceChildren(...[text && h("p", {}, text), again].filter(Boolean));
  byId("notice").hidden = !text;
}

// --- writing

function send(text) {
  if (running || !text.trim()) return;
  conversation.messages.push({role: "user", text: text.trim()});
  conversation.title ||= text.trim().slice(0, N_TITLE);
  answerNext();
}

function edit(question, text) {
  if (running) return;
  conversation.messages.splice(conversation.messages.indexOf(question));
  if (!conversation.messages.length) conversation.title = "";
  send(text);
}

function regenerate(answer) {
  if (running) return;
  conversation.messages.splice(conversation.messages.indexOf(answer));
  answerNext();
}

async function answerNext() {
  const its = conversation; // another one may be opened meanwhile
  const messages = [...its.messages];
  const answer = newAnswer(store.settings);
  its.messages.push(answer);
  show();
  toEnd();
  if (document.activeElement === document.body) message.focus();
  const view = views.get(answer);
  view.busy();
  const ended = await work(async (signal) => {
    await ready;
    answer.asked.chat = props.chat;
    await write(answer, messages, signal, (text, marks) => view.grow(text, marks, followEnd));
  });
  answer.error = ended.error?.message ?? null;
  finish(its, view, ended.error ? "" : `Answer finished: ${figures(answer)}`);
  if (ended.error?.status === 401 && (await askForKey(ended.error.message))) regenerate(answer);
}

async function comparePlain(answer) {
  if (running) return;
  const its = conversation;
  const messages = its.messages.slice(0, its.messages.indexOf(answer));
  const view = views.get(answer);
  view.comparing({marks: [], us: 0});
  const {error} = await work((signal) =>
    compare(answer, messages, signal, (plain) => view.comparing(plain)),
  );
  finish(its, view, error ? "" : figures(answer));
  if (error) toast(error.message);
}

// Runs a task that Esc and the stop button can end; returns what went wrong, if anything.
async function work(task) {
  const mine = (running = new AbortController());
  composing();
  try {
    await task(mine.signal);
    return {};
  } catch (error) {
    if (!(error instanceof ApiError)) console.error(error);
    return {error};
  } finally {
    if (running === mine) running = null;
    composing();
  }
}

function finish(its, view, said) {
  view.done();
  followEnd();
  legend();
  if (!store.keep(its)) toast("The browser’s storage is full: this is not kept.");
  list();
  if (said) announce(said);
}

function composing() {
  const send = byId("send");
  send.setAttribute("aria-label", running ? "Stop" : "Send");
  send.querySelector("use").setAttribute("href", `icons.svg#${running ? "stop" : "up"}`);
  document.body.classList.toggle("running", Boolean(running));
}

// --- showing

// Leaves what is shown already alone, so that it is not read out again.
function show() {
  const shown = conversation.messages.map((each) => elements.get(each) ?? made(each));
  for (const element of [...byId("log").children]) if (!shown.includes(element)) element.remove();
  byId("log").append(...shown.filter((element) => !element.isConnected));
  byId("welcome").hidden = shown.length > 0;
  legend();
  list();
}

function made(each) {
  if (each.role === "user") return kept(each, question(each, actions));
  const view = new AnswerView(each, () => props, actions);
  views.set(each, view);
  view.done();
  return kept(each, view.element);
}

function kept(each, element) {
  elements.set(each, element);
  return element;
}

function open(other) {
  running?.abort();
  running = null;
  conversation = other;
  elements.clear();
  views.clear();
  drawer(false);
  show();
  toEnd();
  message.focus();
}

function legend() {
  const found = new Set([OWN]);
  for (const {marks = []} of conversation.messages) marks.forEach(([, source]) => found.add(source));
  byId("legend").replaceChildren(
    ...[...found].map((source) => h("li", {title: meaning(source)}, swatch(source), label(source))),
  );
}

function list() {
  const rows = store.conversations().map((each) => {
    const current = each.id === conversation.id;
    const select = () => current || open(each);
    const title = h("button", {class: "row", type: "button", onclick: select, "aria-current": current && "true"}, each.title);
    const bin = h(
      "button",
      {class: "icon-button bin", type: "button", "aria-label": `Delete “${each.title}”`, onclick: () => remove(each)},
      icon("bin"),
    );
    return h("li", {}, title, bin);
  });
  byId("conversations").replaceChildren(...rows);
}

function remove(each) {
  store.forget(each);
  if (each.id === conversation.id) open(store.newConversation());
  list();
  toast("Conversation deleted.", "Undo", () => {
    store.keep(each);
    open(each);
  });
}

function isNearEnd() {
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
}

let follows = true; // the view goes along with the text until it is scrolled back
scroll.addEventListener("scroll", () => (follows = isNearEnd()), {passive: true});
const followEnd = () => follows && toEnd();
const toEnd = () => (scroll.scrollTop = scroll.scrollHeight);

// --- the rest

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("The browser did not allow copying.");
  }
}

let toasted = 0;
function toast(text, button, onclick) {
  const undo = button && h("button", {type: "button", class: "quiet-button", onclick}, button);
  byId("toast").replaceChildren(h("div", {class: "toast"}, text, undo));
  clearTimeout(toasted);
  toasted = setTimeout(() => byId("toast").replaceChildren(), 6000);
}

function announce(text) {
  byId("toast").replaceChildren(h("span", {class: "hidden"}, text));
}

function drawer(opened) {
  document.body.classList.toggle("drawer", opened);
  byId("veil").hidden = !opened;
  byId("main").inert = opened; // the keyboard stays in the drawer, Esc closes it
  byId("menu").setAttribute("aria-expanded", String(opened));
}

function showTheme() {
  const theme = store.theme();
  byId("theme").setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
  byId("theme").title = `Colours: ${THEMES[theme]}`;
  byId("theme").querySelector("use").setAttribute("href", `icons.svg#${theme}`);
}

function showSources() {
  byId("sources").setAttribute("aria-checked", String(store.settings.colours));
  document.body.classList.toggle("uncoloured", !store.settings.colours);
}

function fitMessage() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight}px`;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = message.value;
  message.value = "";
  fitMessage();
  send(text);
});
message.addEventListener("input", fitMessage);
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) byId("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("drawer")) drawer(false), byId("menu").focus();
  else running?.abort();
});
// Whoever leaves finds what was written so far. Requests may have failed by the time of pagehide;
// phones do not tell before.
for (const leaving of ["beforeunload", "pagehide"]) {
  window.addEventListener(leaving, () => {
    if (!running) return;
    running.abort();
    store.keep(conversation);
  });
}
document.addEventListener("copytext", (event) => copy(event.detail));
byId("new").addEventListener("click", () => open(store.newConversation()));
byId("menu").addEventListener("click", () => {
  drawer(!document.body.classList.contains("drawer"));
  byId("new").focus();
});
byId("veil").addEventListener("click", () => drawer(false));
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  store.setTheme(names[(names.indexOf(store.theme()) + 1) % names.length]);
  showTheme();
});
byId("sources").addEventListener("click", () => {
  store.settings.colours = !store.settings.colours;
  store.saveSettings();
  showSources();
});
byId("open-settings").addEventListener("click", () => openSettings(props));

showTheme();
showSources();
describe();
show();
message.focus();
ready = connect();
