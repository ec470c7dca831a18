// Actions on a whole conversation: rename, copy, export, delete.

import {content} from "./answer.js";
import * as chat from "./chat.js";
import {button, byId, h, icon} from "./dom.js";
import {ask} from "./panels.js";
import {remove} from "./sidebar.js";
import {shown} from "./store.js";
import {copy} from "./toast.js";

const model = () => chat.server.props.model ?? "Model";

// The conversation as Markdown, with a heading for each message.
function asMarkdown({title, messages}) {
  const turns = messages.map((each) => {
    if (each.role !== "user") return `## ${model()}\n\n${shown(each).text.trim()}`;
    return `## You\n\n${"[picture]\n\n".repeat(each.pictures?.length ?? 0)}${each.text}`;
  });
  return `${[`# ${title}`, ...turns].join("\n\n")}\n`;
}

// The conversation as JSON: messages in OpenAI's format, settings and statistics.
function asJson({title, settings, messages}) {
  const turns = messages.map((each) => {
    if (each.role === "user") return {role: "user", content: content(each)};
    const {text, statistics} = shown(each);
    return {role: "assistant", content: text, statistics};
  });
  return `${JSON.stringify({title, model: model(), settings, messages: turns}, null, 2)}\n`;
}

function download(text, {title}, ending, type) {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
  const href = URL.createObjectURL(new Blob([text], {type}));
  h("a", {href, download: `${name}.${ending}`}).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

async function rename(its) {
  const field = {"aria-label": "Title", value: its.title, maxlength: 120};
  const title = await ask("Rename", field, "Rename");
  if (title) chat.rename(its, title);
}

const ACTIONS = [
  ["edit", "Rename", rename],
  ["copy", "Copy all", (its) => copy(asMarkdown(its))],
  ["save", "Export as Markdown", (its) => download(asMarkdown(its), its, "md", "text/markdown")],
  ["save", "Export as JSON", (its) => download(asJson(its), its, "json", "application/json")],
  ["bin", "Delete", ({id}) => remove(id)],
];

byId("more-menu").append(
  ...ACTIONS.map(([name, text, does]) => {
    const onclick = () => {
      byId("more-menu").hidePopover();
      does(chat.conversation());
    };
    return button({class: "row", onclick}, icon(name), text);
  }),
);
