// Conversations: the one shown, and answers being generated. An answer continues
// while another conversation is shown.

import {compare, newAnswer, STOPPED, write} from "./answer.js";
import {ApiError} from "./api.js";
import {figures} from "./cards.js";
import {byId} from "./dom.js";
import {askForKey} from "./panels.js";
import {followEnd, toEnd} from "./scroll.js";
import {usable} from "./sources.js";
import * as store from "./store.js";
import {announce, toast} from "./toast.js";
import {AnswerView, question} from "./turns.js";

const N_TITLE = 60; // characters
const {shown} = store;

// models: those to choose from; props: of the chosen one; ready: a promise that
// resolves once they are known.
export const server = {ready: null, models: [], props: {}};

let here = store.newConversation(); // the conversation shown
const removed = new Set(); // ids of deleted conversations, whose answers are not saved
const running = new Map(); // by id, {conversation, abort} of answers being generated
const views = new WeakMap(); // by message; each has its element
let changed = () => {}; // called when parts of the page outside the log may have to change

export const conversation = () => here;
export const isRunning = (id = here.id) => running.has(id);
export const whenChanged = (listener) => (changed = listener);
export const stop = () => running.get(here.id)?.abort();
const find = (id) => running.get(id)?.conversation ?? store.conversation(id);

const actions = {edit, again, goOn, compare: comparePlain, choose};

// --- writing

// pictures: data URLs.
export function send(text, pictures = []) {
  if (isRunning() || !(text.trim() || pictures.length)) return;
  here.messages.push({role: "user", text: text.trim(), pictures});
  here.title ||= text.trim().slice(0, N_TITLE) || "Picture";
  const answer = newAnswer(here.settings);
  const message = {role: "assistant", versions: [answer], at: 0};
  here.messages.push(message);
  show();
  toEnd();
  if (document.activeElement === document.body) byId("message").focus();
  answerTo(here, message, answer);
}

function edit(question, text) {
  if (isRunning()) return;
  cutFrom(question);
  if (!here.messages.length) here.title = "";
  send(text, question.pictures);
}

// Generates another version of an answer. Shows the current one until the new one has text.
function again(message) {
  if (isRunning()) return;
  cutFrom(here.messages[here.messages.indexOf(message) + 1]);
  show();
  answerTo(here, message, newAnswer(here.settings));
}

// Continues an answer.
function goOn(message) {
  if (isRunning()) return;
  const answer = shown(message);
  answer.asked.max_tokens = here.settings.max_tokens;
  answerTo(here, message, answer);
}

// Removes this message and those after it; the user can undo that.
function cutFrom(message) {
  const at = here.messages.indexOf(message);
  if (at < 0) return;
  const [its, before] = [here, [...here.messages]];
  const versions = before.map((each) => each.at);
  here.messages.splice(at);
  toast("Later messages were removed.", "Undo", () => {
    if (isRunning(its.id)) return toast("Stop the answer first.");
    its.messages = before;
    before.forEach((each, i) => each.versions && refresh(each, versions[i]));
    finish(its, null, "");
  });
}

// Shows this version of an answer.
function refresh(message, at) {
  message.at = at;
  viewOf(message).show();
  viewOf(message).done();
}

async function answerTo(its, message, answer) {
  const messages = textsBefore(its, message);
  const view = viewOf(message);
  view.busy(answer);
  const ended = await work(its, async (signal) => {
    await server.ready;
    prepare(answer);
    const grown = (text, marks) => {
      if (shown(message) === answer) view.grow(answer, text, marks, () => its === here && followEnd());
      else adopt(message, answer), view.show();
      if (its === here) changed("sources");
    };
    await write(answer, messages, signal, grown, (share) => view.busy(answer, share));
  });
  const {error} = ended;
  if (!error && answer.finish !== STOPPED) adopt(message, answer); // it may have no text
  shown(message).error = error?.message ?? null;
  view.show();
  finish(its, view, error ? "" : `Answer finished: ${figures(answer)}`);
  if (error?.status !== 401 || !(await askForKey(error.message)) || its !== here) return;
  if (answer.text) goOn(message);
  else again(message);
}

// Replaces a drafter that this server does not have by "auto".
function prepare({asked}) {
  const {chat, n_share, model} = server.props;
  asked.draft = draftHere(asked.draft);
  Object.assign(asked, {chat, n_share, model});
}

export const draftHere = (draft) =>
  draft === null || usable().includes(draft) ? draft : "auto";

// Replaces a version without text.
function adopt(message, answer) {
  if (message.versions.includes(answer)) return;
  if (shown(message).text) message.versions.push(answer);
  else message.versions[message.at] = answer;
  message.at = message.versions.indexOf(answer);
}

function choose(message, at) {
  if (isRunning()) return;
  refresh(message, at);
  finish(here, null, `Version ${at + 1} of ${message.versions.length}`);
}

async function comparePlain(message) {
  if (isRunning()) return;
  const [its, answer] = [here, shown(message)];
  const view = viewOf(message);
  view.comparing({marks: [], us: 0});
  const {error} = await work(its, (signal) =>
    compare(answer, textsBefore(its, message), signal, (plain) => view.comparing(plain)),
  );
  finish(its, view, error ? "" : figures(answer));
  if (error) toast(error.message);
}

const textsBefore = ({messages}, message) =>
  messages.slice(0, messages.indexOf(message)).map(({role, text, pictures, ...each}) => ({
    role,
    text: text ?? shown(each).text,
    pictures,
  }));

// Runs a task that Esc and the stop button can end. Returns {error} if it fails.
async function work(its, task) {
  const mine = new AbortController();
  running.set(its.id, {conversation: its, abort: () => mine.abort()});
  keep(its);
  changed();
  try {
    await task(mine.signal);
    return {};
  } catch (error) {
    if (!(error instanceof ApiError)) console.error(error);
    return {error};
  } finally {
    running.delete(its.id);
  }
}

function finish(its, view, said) {
  view?.done();
  keep(its);
  if (its === here) show(), followEnd();
  changed();
  if (said) announce(its === here ? said : `${said}, in “${its.title}”`);
}

export function keep(its) {
  if (!removed.has(its.id) && !store.keep(its)) toast("The browser’s storage is full: this conversation is not saved.");
}

// Saves unfinished answers when the page closes.
export function leave() {
  for (const {conversation, abort} of running.values()) {
    abort();
    store.keep(conversation);
  }
}

// --- showing

// Keeps elements that are shown already, so that screen readers do not read them again.
export function show() {
  const log = byId("log");
  const found = here.messages.map((each) => viewOf(each).element);
  for (const element of [...log.children]) if (!found.includes(element)) element.remove();
  log.append(...found.slice(log.children.length)); // elements that stay come first
  byId("welcome").hidden = found.length > 0;
  changed();
}

function viewOf(message) {
  if (!views.has(message)) {
    const isQuestion = message.role === "user";
    views.set(message, isQuestion ? question(message, actions) : new AnswerView(message, actions));
  }
  return views.get(message);
}

// Shows another conversation, or a new one if the id is unknown.
export function open(id) {
  here = find(id) ?? store.newConversation();
  show();
  toEnd();
}

// Deletes a conversation and returns it, with the answer so far.
export function remove(id) {
  const its = find(id);
  running.get(id)?.abort();
  removed.add(id);
  store.forget(its);
  return its;
}

export function restore(its) {
  removed.delete(its.id);
  keep(its);
  open(its.id);
}

export function rename(its, title) {
  its.title = title;
  keep(its);
  changed();
}
