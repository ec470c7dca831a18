// Short messages above the composer, and messages for screen readers only.

import {button, byId, h} from "./dom.js";

const SHOWN_MS = 6000;
let clearing = 0;

// label, act: of a button.
export function toast(text, label, act) {
  const clear = () => byId("toast").replaceChildren();
  const onclick = () => (clear(), act());
  const undo = label && button({class: "quiet-button", onclick}, label);
  byId("toast").replaceChildren(h("div", {class: "toast"}, text, undo));
  clearTimeout(clearing);
  clearing = setTimeout(clear, SHOWN_MS);
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
