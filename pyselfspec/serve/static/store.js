// Data kept in this browser: conversations, settings, theme. The API key is kept per tab.

const PREFIX = "pyselfspec.";
const CONVERSATION = `${PREFIX}conversation.`;

// Settings of a conversation.
const DEFAULTS = {
  draft: "auto",
  temperature: null, // null: the server's
  max_tokens: null, // null: no limit but the server's
  seed: null, // null: random
  system: "",
};

// Settings of the next new conversation, whether sources are coloured, and the chosen model.
export const settings = {...DEFAULTS, colours: true, model: null, ...read(localStorage, `${PREFIX}settings`)};
export const saveSettings = () => write(localStorage, `${PREFIX}settings`, settings);

export const theme = () => read(localStorage, `${PREFIX}theme`) ?? "auto";

export function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  write(localStorage, `${PREFIX}theme`, name);
}

export const key = () => read(sessionStorage, `${PREFIX}key`) ?? "";
export const setKey = (value) => write(sessionStorage, `${PREFIX}key`, value);

// A conversation is {id, title, updated (ms), settings, messages}. A message is a question,
// {role: "user", text}, or has all versions of an answer and which of them is shown,
// {role: "assistant", versions, at}; see answer.js.
export function newConversation() {
  const id = [...crypto.getRandomValues(new Uint32Array(2))].map((n) => n.toString(36)).join("");
  const own = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, settings[name]]));
  return {id, title: "", updated: Date.now(), settings: own, messages: []};
}

export const shown = ({versions, at}) => versions[at];

// The latest first. Each has an entry of its own, so that two tabs do not overwrite one another.
export function conversations() {
  return Object.keys(localStorage)
    .filter((name) => name.startsWith(CONVERSATION))
    .map((name) => stored(name))
    .filter(Boolean)
    .sort((a, b) => b.updated - a.updated);
}

export const conversation = (id) => stored(CONVERSATION + id);

function stored(name) {
  const found = read(localStorage, name);
  return found?.id && Array.isArray(found.messages) ? found : null;
}

// Returns false if the browser's storage is full.
export function keep(conversation) {
  conversation.updated = Date.now();
  return write(localStorage, CONVERSATION + conversation.id, conversation);
}

export const forget = (conversation) => localStorage.removeItem(CONVERSATION + conversation.id);

function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null;
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
