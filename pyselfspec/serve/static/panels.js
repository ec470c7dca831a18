// The dialogs: settings, and those that ask for one text, such as the API key.

import {button, byId, h} from "./dom.js";
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
  const drafters = usable().map((name) => [name, label(name)]);
  const choices = [["auto", "automatic"], [PLAIN, "none: plain decoding"], ...drafters];
  draft.replaceChildren(...choices.map(([value, text]) => h("option", {value}, text)));
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
export async function askForKey(why) {
  const field = {type: "password", "aria-label": "API key", spellcheck: "false"};
  const note = "Stored until this tab is closed, and sent to this server only.";
  const given = await ask("API key", field, "Use this key", {why, note});
  if (given) setKey(given);
  return Boolean(given);
}

// Resolves to a text that the user gives, empty for none. field: attributes of its input.
export function ask(title, field, does, {why, note} = {}) {
  const input = h("input", {autocomplete: "off", required: true, ...field});
  const dialog = h(
    "dialog",
    {class: "card-dialog", "aria-label": title},
    h(
      "form",
      {method: "dialog"},
      h("h2", {}, title),
      why && h("p", {class: "quiet"}, why),
      input,
      note && h("p", {class: "quiet small"}, note),
      h(
        "div",
        {class: "actions"},
        button({class: "button", onclick: () => dialog.close()}, "Cancel"),
        h("button", {class: "button primary", value: "given"}, does),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  input.select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue && input.value.trim());
    });
  });
}
