// The dialogs: settings, and the API key.

import {byId, h} from "./dom.js";
import {label, usable} from "./sources.js";
import {saveSettings, setKey, settings} from "./store.js";

const NUMBERS = ["temperature", "max_tokens", "seed"];
const PLAIN = "plain"; // the choice that stands for null

let its = null; // the conversation that the dialog is about
let kept = () => {}; // called after changes

// chat: the module chat.js. Shows the settings of its conversation.
export function openSettings({conversation, draftHere, keep, server}) {
  its = conversation();
  kept = () => its.messages.length && keep(its);
  const draft = byId("draft");
  const names = ["auto", PLAIN, ...usable()];
  draft.replaceChildren(...names.map((name) => h("option", {value: name}, said(name))));
  draft.value = draftHere(its.settings.draft) ?? PLAIN;
  for (const name of [...NUMBERS, "system"]) byId(name).value = its.settings[name] ?? "";
  byId("temperature").value = its.settings.temperature ?? server.props.default_generation_settings?.params.temperature;
  byId("system-field").hidden = server.props.chat === false;
  byId("model-field").hidden = server.models.length < 2;
  byId("settings-model").replaceChildren(...server.models.map((name) => h("option", {}, name)));
  byId("settings-model").value = server.props.model;
  showTemperature();
  byId("settings").showModal();
}

function said(name) {
  if (name === "auto") return "automatic";
  return name === PLAIN ? "none: plain decoding" : label(name);
}

function showTemperature() {
  byId("temperature-value").value = Number(byId("temperature").value).toFixed(2);
}

// Applies valid values at once, also to the next new conversation.
function take({target}) {
  const {name, value} = target;
  if (!name || !target.validity.valid) return;
  let taken = value;
  if (NUMBERS.includes(name)) taken = value === "" ? null : Number(value);
  else if (name === "draft" && value === PLAIN) taken = null;
  its.settings[name] = settings[name] = taken;
  showTemperature();
  saveSettings();
  kept();
}

byId("settings").addEventListener("input", take);
byId("settings").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close(); // beside the panel
});
byId("change-key").addEventListener("click", () => {
  byId("settings").close();
  askForKey("It is sent with every request to this server.");
});

// Resolves to whether a key was given.
export function askForKey(why) {
  const dialog = byId("key-dialog");
  byId("key-why").textContent = why;
  byId("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "given";
      if (given) setKey(byId("key").value.trim());
      byId("key").value = "";
      resolve(given);
    }, {once: true});
  });
}

byId("key-dialog").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (byId("key").value.trim()) byId("key-dialog").close("given");
});
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
