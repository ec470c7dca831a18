// The page: description of the server, and handlers of keys and buttons.

import {ApiError, models, props as fetchProps} from "./api.js";
import * as chat from "./chat.js";
import {swatch} from "./charts.js";
import {button, byId, h, setIcon} from "./dom.js";
import "./more.js";
import {askForKey, openSettings} from "./panels.js";
import {address, addressed, drawer, list} from "./sidebar.js";
import {taken, takePictures} from "./pictures.js";
import {label, meaning, OWN, setSources} from "./sources.js";
import * as store from "./store.js";

const EXAMPLES = {
  chat: [
    "Why is the sky blue?",
    "Write a Python function that merges two sorted lists.",
    "Tell me a short story about a lighthouse.",
    "Compare tea and coffee in a table.",
  ],
  plain: ["Once upon a time", "The three best things about rain are", "def fibonacci(n):"],
};
const THEMES = {auto: "as the system", light: "light", dark: "dark"};
const NO_TEMPLATE = "This model has no chat template, so it continues your text instead of answering.";

const message = byId("message");

// --- the server

async function connect() {
  const {model} = store.settings;
  const isOld = () => model !== store.settings.model; // another was chosen meanwhile
  try {
    const names = await models();
    if (!names.length) throw new ApiError("This server has no model that generates text.");
    const name = names.includes(model) ? model : names[0];
    chat.server.models = names;
    const found = await fetchProps(name);
    if (isOld()) return;
    chat.server.props = {...found, model: name, chat: Boolean(found.chat_template ?? true)};
    setSources(found.drafters ?? []);
    notice(chat.server.props.chat ? "" : NO_TEMPLATE);
  } catch (error) {
    if (isOld()) return;
    if (error.status === 401 && (await askForKey(error.message))) return connect();
    const onclick = () => (chat.server.ready = connect());
    notice(error.message, button({class: "button", onclick}, "Try again"));
  }
  describe();
  legend();
}

function describe() {
  const {model, chat: chats = true} = chat.server.props;
  byId("model").textContent = model ?? "pyselfspec";
  document.title = model ? `${model} · pyselfspec` : "pyselfspec";
  byId("facts").textContent = facts(chat.server.props).join(" · ");
  message.placeholder = chats ? "Message" : "A text to continue";
  byId("examples").replaceChildren(
    ...EXAMPLES[chats ? "chat" : "plain"].map((text) =>
      h("li", {}, button({class: "example", onclick: () => chat.send(text)}, text)),
    ),
  );
}

// Facts about the model: size, type of weights, context.
function facts({n_params, type, n_bytes, n_ctx}) {
  return [
    n_params && `${rounded(n_params, ["", "K", "M", "B", "T"])} parameters`,
    type,
    n_bytes && rounded(n_bytes, ["bytes", "kB", "MB", "GB", "TB"]),
    n_ctx && `context ${n_ctx.toLocaleString("en")}`,
  ].filter(Boolean);
}

// Whole, or with one decimal below 10.
function rounded(n, units) {
  const i = Math.min(units.length - 1, Math.floor(Math.log10(n) / 3));
  const value = n / 1000 ** i;
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${units[i]}`;
}

function notice(text, ...buttons) {
  byId("notice").replaceChildren(h("p", {}, text), ...buttons);
  byId("notice").hidden = !text;
}

// --- updates after changes of the conversation

// what: "sources" if only text was added.
function changed(what) {
  legend();
  if (what === "sources") return;
  address();
  list();
  composing();
  byId("more").disabled = !chat.conversation().messages.length;
}

let inLegend = "";
function legend() {
  const answers = chat.conversation().messages.filter(({versions}) => versions);
  const found = new Set([OWN]);
  for (const each of answers) store.shown(each).marks.forEach(([, source]) => found.add(source));
  const items = [...found].map((source) => [source, label(source), meaning(source)]);
  if (inLegend === String(items)) return;
  inLegend = String(items);
  byId("legend").replaceChildren(
    ...items.map(([source, name, title]) => h("li", {title}, swatch(source), name)),
  );
}

function composing() {
  const running = chat.isRunning();
  byId("send").setAttribute("aria-label", running ? "Stop" : "Send");
  setIcon(byId("send"), running ? "stop" : "up");
  document.body.classList.toggle("running", running);
}

// --- the rest

function showTheme() {
  const theme = store.theme();
  byId("theme").setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
  byId("theme").title = `Colours: ${THEMES[theme]}`;
  setIcon(byId("theme"), theme);
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
  if (chat.isRunning()) return chat.stop();
  const text = message.value;
  message.value = "";
  fitMessage();
  chat.send(text, taken());
});
message.addEventListener("input", fitMessage);
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!chat.isRunning()) byId("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open], :popover-open")) return;
  if (document.body.classList.contains("drawer")) drawer(false), byId("menu").focus();
  else chat.stop();
});
// At pagehide, requests may have failed already; phones send no earlier event.
for (const leaving of ["beforeunload", "pagehide"]) window.addEventListener(leaving, chat.leave);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the conversation
  message.focus();
});
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
byId("open-settings").addEventListener("click", () => openSettings(chat));
byId("settings-model").addEventListener("change", ({target}) => {
  store.settings.model = target.value;
  store.saveSettings();
  notice(`Loading ${target.value} …`);
  chat.server.ready = connect();
});

takePictures(() => chat.server.props.modalities?.vision);
showTheme();
showSources();
describe();
chat.whenChanged(changed);
chat.open(addressed());
message.focus();
chat.server.ready = connect();
