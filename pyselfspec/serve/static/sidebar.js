// The list of conversations, the latest first, with search and deletion.

import * as chat from "./chat.js";
import {button, byId, h, icon} from "./dom.js";
import * as store from "./store.js";
import {toast} from "./toast.js";

const search = byId("search");

export function list() {
  const all = store.conversations();
  const wanted = search.value.trim().toLowerCase();
  const found = wanted ? all.filter((each) => says(each, wanted)) : all;
  byId("conversations").replaceChildren(...found.map(row));
  byId("search-field").hidden = !all.length;
  byId("nothing-found").hidden = !all.length || found.length > 0;
}

const says = ({title, messages}, wanted) =>
  [title, ...messages.map((each) => each.text ?? store.shown(each).text)].some((text) =>
    text.toLowerCase().includes(wanted),
  );

function row({id, title}) {
  const isHere = id === chat.conversation().id;
  const choose = () => (isHere ? drawer(false) : visit(id));
  const shows = button(
    {class: "row", onclick: choose, "aria-current": isHere && "true"},
    chat.isRunning(id) && h("span", {class: "writing", role: "img", "aria-label": "Being written:"}),
    title,
  );
  const named = {class: "icon-button bin", "aria-label": `Delete “${title}”`};
  return h("li", {}, shows, button({...named, onclick: () => remove(id)}, icon("bin")));
}

export function remove(id) {
  const its = chat.remove(id);
  if (id === chat.conversation().id) visit(null);
  list();
  toast("Conversation deleted.", "Undo", () => chat.restore(its));
}

// Shows a conversation, null for a new one. The browser's Back returns to the former one.
export function visit(id) {
  history.pushState(null, "", id ? `#${id}` : location.pathname);
  chat.open(id);
  drawer(false);
  byId("message").focus();
}

// The address names a conversation with messages, so that a reload finds it.
export function address() {
  const {id, messages} = chat.conversation();
  const wanted = messages.length ? `#${id}` : "";
  if (location.hash !== wanted) history.replaceState(null, "", wanted || location.pathname);
}

// The id in the address.
export const addressed = () => location.hash.slice(1) || null;

export function drawer(opened) {
  document.body.classList.toggle("drawer", opened);
  byId("veil").hidden = !opened;
  byId("main").inert = opened; // the keyboard stays in the drawer, Esc closes it
  byId("menu").setAttribute("aria-expanded", String(opened));
}

search.addEventListener("input", list);
window.addEventListener("popstate", () => {
  if (addressed() !== chat.conversation().id) chat.open(addressed());
});
byId("new").addEventListener("click", () => visit(null));
byId("menu").addEventListener("click", () => {
  drawer(!document.body.classList.contains("drawer"));
  byId("new").focus();
});
byId("veil").addEventListener("click", () => drawer(false));
