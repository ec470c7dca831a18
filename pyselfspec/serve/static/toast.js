// Short messages above the composer, and messages for screen readers only.

import {byId, h} from "./dom.js";

const SHOWN_MS = 6000;
let clearing = 0;

export function toast(text, button, onclick) {
  const clicked = () => {
    byId("toast").replaceChildren();
    onclick();
  };
  const undo = button && h("button", {type: "button", class: "quiet-button", onclick: clicked}, button);
  byId("toast").replaceChildren(h("div", {class: "toast"}, text, undo));
  clearTimeout(clearing);
  clearing = setTimeout(() => byId("toast").replaceChildren(), SHOWN_MS);
}

export function announce(text) {
  byId("announced").textContent = text;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("The browser did not allow copying.");
  }
}
