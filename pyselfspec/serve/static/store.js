// What this browser remembers: conversations, settings, theme. The API key stays with the tab.

const PREFIX = "pyselfspec.";
const CONVERSATION = `${PREFIX}conversation.`;

export const DEFAULTS = {
  draft: "auto",
  temperature: 0.7,
  max_tokens: 512,
  seed: null, // another each time
  system: "",
  colours: true,
};

export const settings = {...DEFAULTS, ...read(localStorage, `${PREFIX}settings`)};
export const saveSettings = () => write(localStorage, `${PREFIX}settings`, settings);

export const theme = () => read(localStorage, `${PREFIX}theme`) ?? "auto";

export function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  write(localStorage, `${PREFIX}theme`, name);
}

export const key = () => read(sessionStorage, `${PREFIX}key`) ?? "";
export const setKey = (value) => write(sessionStorage, `${PREFIX}key`, value);

// A conversation is {id, title, updated (ms), messages}; see chat.js for messages.
export function newConversation() {
  const id = [...crypto.getRandomValues(new Uint32Array(2))].map((n) => n.toString(36)).join("");
  return {id, title: "", updated: Date.now(), messages: []};
}

// The latest first. Each has an entry of its own, so that two tabs do not overwrite one another.
export function conversations() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(CONVERSATION));
  return names
    .map((name) => read(localStorage, name))
    .filter((found) => found?.id && Array.isArray(found.messages))
    .sort((a, b) => b.updated - a.updated);
}

// False where the browser's storage is full.
export function keep(conversation) {
  conversation.updated = Date.now();
  return write(localStorage, CONVERSATION + conversation.id, conversation);
}

export const forget = (conversation) => localStorage.removeItem(CONVERSATION + conversation.id);

function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(name)) ?? undefined;
  } catch {
    return undefined;
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
