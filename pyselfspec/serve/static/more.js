// Actions on a whole conversation: rename, copy, export, delete.

import {content} from "./answer.js";
import * as chat from "./chat.js";
import {byId} from "./dom.js";
import {remove} from "./sidebar.js";
import {shown} from "./store.js";
import {copy} from "./toast.js";

// Returns the conversation as Markdown, with a heading for each message.
export function asMarkdown({title, messages}, model) {
  const turns = messages.map((each) =>
    each.role === "user" ? `## You\n\n${"[picture]\n\n".repeat(each.pictures?.length ?? 0)}${each.text}` : `## ${model}\n\n${shown(each).text.trim()}`,
  );
  return `${[`# ${title}`, ...turns].join("\n\n")}\n`;
}

// Returns the conversation as JSON: messages in OpenAI's format, settings and statistics.
export function asJson({title, settings, messages}, model) {
  const turns = messages.map((each) =>
    each.role === "user"
      ? {role: "user", content: content(each)}
      : {role: "assistant", content: shown(each).text, statistics: shown(each).statistics},
  );
  return `${JSON.stringify({title, model, settings, messages: turns}, null, 2)}\n`;
}

const model = () => chat.server.props.model ?? "Model";
const fileName = ({title}, ending) =>
  `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation"}.${ending}`;

function download(text, name, type) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  const link = document.createElement("a");
  Object.assign(link, {href: url, download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const does = {
  rename: askForTitle,
  copy: (its) => copy(asMarkdown(its, model())),
  markdown: (its) => download(asMarkdown(its, model()), fileName(its, "md"), "text/markdown"),
  json: (its) => download(asJson(its, model()), fileName(its, "json"), "application/json"),
  delete: ({id}) => remove(id),
};

function askForTitle(its) {
  const dialog = byId("rename-dialog");
  byId("new-title").value = its.title;
  dialog.returnValue = "";
  dialog.showModal();
  byId("new-title").select();
  dialog.addEventListener("close", () => {
    const title = byId("new-title").value.trim();
    if (dialog.returnValue === "given" && title) chat.rename(its.id, title);
  }, {once: true});
}

byId("more-menu").addEventListener("click", ({target}) => {
  const name = target.closest("button")?.dataset.does;
  byId("more-menu").hidePopover();
  if (name) does[name](chat.conversation());
});
byId("rename-cancel").addEventListener("click", () => byId("rename-dialog").close());
