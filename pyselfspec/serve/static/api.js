// Requests to the server. Messages of errors say what to do.

import {key} from "./store.js";

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status; // of HTTP; 0 without a response
  }
}

// The names of the models that generate text.
export async function models() {
  const {data} = await (await request("v1/models")).json();
  return data.filter(({capabilities}) => capabilities.includes("completion")).map(({id}) => id);
}

// /props: a model and how it drafts. One of several is loaded if it is not.
export async function props(name) {
  return (await request(`props?model=${encodeURIComponent(name)}`)).json();
}

// Yields the chunks of a streamed answer. Throws an ApiError unless the stream is complete.
export async function* stream(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: {include_usage: true},
      return_progress: true,
      reasoning_format: "none",
    }),
    signal,
  });
  let ended = false;
  try {
    for await (const data of events(response.body)) {
      ended ||= data === "[DONE]";
      if (ended) continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(sentence(chunk.error.message ?? chunk.error));
      yield chunk;
    }
  } catch (error) {
    throw asApiError(error);
  }
  if (!ended) throw new ApiError("The connection ended before the answer was complete.");
}

async function request(path, options = {}) {
  const headers = {"Content-Type": "application/json"};
  if (key()) headers.Authorization = `Bearer ${key()}`;
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    throw asApiError(error);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// The data of server-sent events. https://html.spec.whatwg.org/multipage/server-sent-events.html
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      buffer = (buffer + value).replaceAll("\r\n", "\n");
      const parts = buffer.split("\n\n");
      buffer = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the server stops generating
  }
}

async function refusal(response) {
  const said = await response.json().then(
    (body) => body.error?.message ?? body.detail ?? "",
    () => "",
  );
  const {status} = response;
  if (status === 401) return new ApiError("The server requires an API key.", status);
  if (status === 429 || status === 503) {
    return new ApiError(`The server is busy. Try again in a moment. ${sentence(said)}`.trim(), status);
  }
  return new ApiError(sentence(said) || `The server answered with status ${status}.`, status);
}

function asApiError(error) {
  if (error instanceof ApiError || error.name === "AbortError") return error;
  if (error instanceof SyntaxError) return new ApiError("The server sent invalid JSON.");
  return new ApiError("The server does not answer. Is “pyselfspec serve” still running?");
}

function sentence(text) {
  const line = String(text).trim();
  return line && line[0].toUpperCase() + line.slice(1) + (/[.!?]$/.test(line) ? "" : ".");
}
