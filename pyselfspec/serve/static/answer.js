// One answer of the server: its request, its text, and the comparison with plain decoding.
//
// An answer is ready for JSON:
//   {text, marks: [[characters, source], ...] by token, us (of the tokens so far), finish,
//    statistics (the server's, unless it was stopped), error, plain, asked,
//    part: {chars, marks, us} before it was continued last, and statistics of the rest}

import {stream} from "./api.js";
import {merged} from "./statistics.js";

export const STOPPED = "stopped"; // by the user; other reasons come from the server

// settings: of the conversation. The fields chat, whether the model has a chat
// template, n_share, the limit of an answer without its own, and model, the name of one of
// several, are added later.
export function newAnswer(settings) {
  const [drawn] = crypto.getRandomValues(new Uint32Array(1));
  return {
    text: "",
    marks: [],
    us: 0,
    finish: null,
    statistics: null,
    error: null,
    plain: null,
    part: {chars: 0, marks: 0, us: 0, statistics: null},
    asked: {...settings, seed: settings.seed ?? drawn >>> 1},
  };
}

// Generates an answer, or the rest of it; calls grown(text, marks) for each piece, and before
// that read(share) for the share of the prompt that has been read.
export async function write(answer, messages, signal, grown, read = () => {}) {
  const before = {...answer};
  const isFirst = !answer.text;
  answer.part = {chars: answer.text.length, marks: answer.marks.length, us: answer.us, statistics: null};
  Object.assign(answer, {finish: null, error: null, plain: null, statistics: null});
  const [path, body] = request(answer, messages);
  try {
    for await (const chunk of stream(path, body, signal)) {
      const choice = chunk.choices?.[0];
      const text = choice?.delta?.content ?? choice?.text ?? "";
      const marks = (chunk.pyselfspec?.tokens ?? []).map(([token, source]) => [token.length, source]);
      answer.text += text;
      answer.marks.push(...marks);
      answer.us += chunk.pyselfspec?.us ?? 0;
      answer.finish = choice?.finish_reason ?? answer.finish;
      if (chunk.usage?.pyselfspec) answer.part.statistics = chunk.usage.pyselfspec;
      if (text || marks.length) grown(text, marks);
      if (chunk.prompt_progress) read(share(chunk.prompt_progress));
    }
  } catch (error) {
    const isNew = isFirst || answer.marks.length > answer.part.marks;
    if (isNew) answer.finish = STOPPED;
    else Object.assign(answer, before);
    if (error.name !== "AbortError") throw error;
    return;
  }
  const {statistics} = answer.part;
  answer.statistics = isFirst ? statistics : merged(before.statistics, statistics);
}

// Of the tokens that were not read before. There is at least one, since the last is always read.
const share = ({total, cache, processed}) => (processed - cache) / (total - cache);

// Returns path and body of the request.
function request({asked, text}, messages) {
  const {draft, temperature, max_tokens, seed, system, chat, n_share, model} = asked;
  const options = {model, temperature, seed, pyselfspec: {draft, show: true}};
  if (!chat) {
    const limit = max_tokens ?? n_share; // the server's default is very low
    return ["v1/completions", {prompt: joined(messages) + text, ...options, max_tokens: limit}];
  }
  const begin = system ? [{role: "system", content: system}] : [];
  const turns = messages.map((each) => ({role: each.role, content: content(each)}));
  if (text) {
    turns.push({role: "assistant", content: text});
    options.pyselfspec.continue = true;
  }
  if (max_tokens !== null) options.max_tokens = max_tokens;
  return ["v1/chat/completions", {messages: [...begin, ...turns], ...options}];
}

// The content of a question or an answer, as in OpenAI's API.
export function content({text, pictures}) {
  if (!pictures?.length) return text;
  const found = pictures.map((url) => ({type: "image_url", image_url: {url}}));
  return [...found, ...(text ? [{type: "text", text}] : [])];
}

// Without a chat template, a model continues the text; each message begins a paragraph.
function joined(messages) {
  return messages
    .map(({role, text}, i) => (i && role === "user" ? `\n\n${text}` : text))
    .join("");
}

// Tokens per second after the prompt; null before the first token.
export function speed({statistics, marks, us}) {
  return statistics?.tokens_per_second ?? (us > 0 ? (marks.length * 1e6) / us : null);
}

// Tokens per second of the latest part of a continued answer.
export function speedOfPart({marks, us, part}) {
  return speed({statistics: part.statistics, marks: marks.slice(part.marks), us: us - part.us});
}

// Whether the answer can be continued: it was stopped, interrupted, or cut at a limit.
export const isUnfinished = ({text, error, finish}) =>
  Boolean(text) && (Boolean(error) || [STOPPED, null, "length"].includes(finish));

// Repeats the latest part without drafts, with its prompt and seed. Sets {speed, fast,
// n, fork} in answer.plain: both speeds, tokens, and the first character in which the texts differ,
// null if they are the same.
export async function compare(answer, messages, signal, grown) {
  const {part, asked} = answer;
  const stopped = answer.finish === STOPPED;
  const max_tokens = stopped ? answer.marks.length - part.marks : asked.max_tokens;
  const plain = {...newAnswer({}), asked: {...asked, max_tokens, draft: null}};
  plain.text = answer.text.slice(0, part.chars);
  await write(plain, messages, signal, () => grown(plain));
  if (plain.finish === STOPPED) return;
  const expected = stopped ? plain.text.slice(0, answer.text.length) : plain.text;
  const n = plain.part.statistics?.n_generated ?? plain.marks.length;
  answer.plain = {speed: speedOfPart(plain), fast: speedOfPart(answer), n, fork: fork(answer.text, expected)};
}

function fork(one, other) {
  if (one === other) return null;
  let i = 0;
  while (i < one.length && one[i] === other[i]) i += 1;
  return i;
}
