// One answer of the server: what was asked, what came, and the same again without drafts.
//
// An answer is a message of a conversation, ready for JSON:
//   {role: "assistant", text, marks: [[characters, source], ...] by token, us (of the tokens so
//    far), finish, statistics (the server's, when it ended by itself), error, plain, asked}
// and a question is {role: "user", text}.

import {stream} from "./api.js";

export const STOPPED = "stopped"; // by the user; else what the server says

// settings: see store.js. What is missing in asked is chat: whether the model has a chat template.
export function newAnswer({draft, temperature, max_tokens, seed, system}) {
  const [drawn] = crypto.getRandomValues(new Uint32Array(1));
  return {
    role: "assistant",
    text: "",
    marks: [],
    us: 0,
    finish: null,
    statistics: null,
    error: null,
    plain: null,
    asked: {draft, temperature, max_tokens, system, seed: seed ?? drawn >>> 1},
  };
}

// Fills an answer to these messages; grown(text, marks) is told what came.
export async function write(answer, messages, signal, grown) {
  const {draft, temperature, max_tokens, seed, system, chat} = answer.asked;
  const begin = chat && system ? [{role: "system", content: system}] : [];
  const turns = messages.map(({role, text}) => ({role, content: text}));
  const prompt = chat ? {messages: [...begin, ...turns]} : {prompt: continued(messages)};
  const options = {temperature, seed, max_tokens, pyselfspec: {draft, show: true}};
  const path = chat ? "v1/chat/completions" : "v1/completions";
  try {
    for await (const chunk of stream(path, {...prompt, ...options}, signal)) {
      const choice = chunk.choices?.[0];
      const text = choice?.delta?.content ?? choice?.text ?? "";
      const marks = (chunk.pyselfspec?.tokens ?? []).map(([token, source]) => [token.length, source]);
      answer.text += text;
      answer.marks.push(...marks);
      answer.us += chunk.pyselfspec?.us ?? 0;
      answer.finish = choice?.finish_reason ?? answer.finish;
      answer.statistics = chunk.usage?.pyselfspec ?? answer.statistics;
      grown(text, marks);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    answer.finish = STOPPED;
  }
}

// Without a chat template, a model goes on with the text; what is said next begins a paragraph.
function continued(messages) {
  return messages
    .map(({role, text}, i) => (i && role === "user" ? `\n\n${text}` : text))
    .join("");
}

// Tokens per second behind the prompt; null while nothing is known.
export function speed({statistics, marks, us}) {
  return statistics?.tokens_per_second ?? (us > 0 ? (marks.length * 1e6) / us : null);
}

// The same prompt and seed without drafts. Leaves {speed, n, fork} in answer.plain; fork: the first
// character in which the texts differ, null if they are the same.
export async function compare(answer, messages, signal, grown) {
  const stopped = answer.finish === STOPPED;
  const max_tokens = stopped ? answer.marks.length : answer.asked.max_tokens;
  const plain = {...newAnswer({}), asked: {...answer.asked, max_tokens, draft: null}};
  await write(plain, messages, signal, () => grown(plain));
  if (plain.finish === STOPPED) return;
  const expected = stopped ? plain.text.slice(0, answer.text.length) : plain.text;
  answer.plain = {speed: speed(plain), n: plain.statistics?.n_generated ?? plain.marks.length, fork: fork(answer.text, expected)};
}

function fork(one, other) {
  if (one === other) return null;
  let i = 0;
  while (i < one.length && one[i] === other[i]) i += 1;
  return i;
}
