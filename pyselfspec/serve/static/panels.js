// The dialogs: settings, and the API key.

import {byId, h} from "./dom.js";
import {label} from "./sources.js";
import {saveSettings, setKey, settings} from "./store.js";

const NUMBERS = ["temperature", "max_tokens", "seed"];
const PLAIN = "plain"; // the choice that stands for null

export function openSettings({sources, chat}) {
  const draft = byId("draft");
  const names = ["auto", PLAIN, ...sources];
  draft.replaceChildren(...names.map((name) => h("option", {value: name}, said(name))));
  draft.value = settings.draft ?? PLAIN;
  if (!draft.value) draft.value = "auto";
  for (const name of [...NUMBERS, "system"]) byId(name).value = settings[name] ?? "";
  byId("system-field").hidden = !chat;
  showTemperature();
  byId("settings").showModal();
}

function said(name) {
  if (name === "auto") return "whatever pays (auto)";
  return name === PLAIN ? "nothing: plain decoding" : label(name);
}

function showTemperature() {
  byId("temperature-value").value = Number(byId("temperature").value).toFixed(2);
}

// What is valid is taken over at once; the rest stays as it was.
function take({target}) {
  const {name, value} = target;
  if (!name || !target.validity.valid) return;
  if (NUMBERS.includes(name)) settings[name] = value === "" ? null : Number(value);
  else settings[name] = name === "draft" && value === PLAIN ? null : value;
  showTemperature();
  saveSettings();
}

byId("settings").addEventListener("input", take);
byId("settings").addEventListener("click", (event) => {
  if (event.target === event.currentTarget) event.currentTarget.close(); // beside the panel
});
byId("change-key").addEventListener("click", () => {
  byId("settings").close();
  askForKey("It goes with every request to this server.");
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
