// What this browser remembers: conversations, settings, theme. The API key stays with the tab.

const PREFIX = "pyselfspec.";
const CONVERSATION = `${PREFIX}conversation.`;

// Of a conversation.
const DEFAULTS = {
  draft: "auto",
  temperature: 0.7,
  max_tokens: null, // as long as the server has room for
  seed: null, // another each time
  system: "",
};

// Those that the next new conversation begins with, and whether sources are coloured.
export const settings = {...DEFAULTS, colours: true, ...read(localStorage, `${PREFIX}settings`)};
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
  return {id, title: "", updated: Date.now(), settings: ownSettings(settings), messages: []};
}

// null says something: plain decoding, no limit, any seed.
const ownSettings = (from) =>
  Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, name in from ? from[name] : DEFAULTS[name]]));

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

// Conversations of earlier releases have no settings, and one version of each answer.
function stored(name) {
  const found = read(localStorage, name);
  if (!found?.id || !Array.isArray(found.messages)) return null;
  found.settings = ownSettings(found.settings ?? settings);
  found.messages = found.messages.map((each) =>
    each.role === "user" || each.versions ? each : {role: each.role, versions: [withPart(each)], at: 0},
  );
  return found;
}

const withPart = (answer) => ({
  part: {chars: 0, marks: 0, us: 0, statistics: answer.statistics},
  ...answer,
});

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
