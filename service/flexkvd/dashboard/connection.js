// The daemon's API from a page: the bearer token, requests, and the stream of events that comes back by itself.
// Owns the token (for this tab's life only), retries and the state of the connection; knows nothing of what is shown.

const TOKEN_KEY = "flexkvd-token";
const RETRY_S = [0.5, 1, 2, 4, 5]; // the last one for ever
const SILENCE_S_MAX = 6; // samples come once a second
const ANSWER_S_MAX = 15;
const EVENT_LENGTH_MAX = 1 << 20;

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function keepToken(token) {
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN_KEY));

function headers(extra = {}) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return token ? { ...extra, Authorization: `Bearer ${token}` } : extra;
}

async function failure(response) {
  const said = await response.json().catch(() => ({}));
  return new ApiError(
    response.status,
    said.code ?? "internal",
    said.message ?? `the daemon answered ${response.status}`,
  );
}

/** One request, its body as text. Throws ApiError for a coded answer, TypeError when nobody answers. */
export async function request(path, { method = "GET", body } = {}) {
  const response = await fetch(path, {
    method,
    headers: headers(body ? { "Content-Type": "application/json" } : {}),
    body: body && JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(1000 * ANSWER_S_MAX),
  });
  if (!response.ok) throw await failure(response);
  return response.text();
}

export const requestJson = async (path, options) => JSON.parse(await request(path, options));

/** Server-sent events in a stream of text: complete ones as {event, data}, the rest as what is left over. */
export function takeEvents(text) {
  const blocks = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    let event = "message";
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) event = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    }
    if (data.length > 0) events.push({ event, data: data.join("\n") });
  }
  return { events, rest };
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/**
 * Keeps `v1/events` open. Calls `onEvent(name, data)`, and `onState(state, detail)` with "live", "lost" (detail: the
 * reason, and the seconds until the next try) or "refused" (detail: the ApiError); then it waits for `resume()`.
 */
export class EventStream {
  #tries = 0;
  #connected = false;
  #resume = () => {};

  constructor({ onEvent, onState }) {
    this.onEvent = onEvent;
    this.onState = onState;
  }

  resume() {
    this.#tries = 0;
    this.#resume();
  }

  async run() {
    for (;;) {
      let reason = "the daemon does not answer";
      try {
        await this.#listen();
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) {
          const told = new Promise((resolve) => (this.#resume = resolve));
          this.onState("refused", error);
          await told;
          continue;
        }
        if (error instanceof ApiError) reason = error.message;
      }
      const seconds = RETRY_S[Math.min(this.#tries, RETRY_S.length - 1)] * (0.75 + Math.random() / 2);
      this.#tries += 1;
      this.onState("lost", { seconds, reason });
      await Promise.race([pause(seconds), new Promise((resolve) => (this.#resume = resolve))]);
    }
  }

  async #listen() {
    const abort = new AbortController();
    let silence = setTimeout(() => abort.abort(), 1000 * SILENCE_S_MAX);
    try {
      const options = { headers: headers({ Accept: "text/event-stream" }), cache: "no-store", signal: abort.signal };
      const response = await fetch("v1/events", options);
      if (!response.ok) throw await failure(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), 1000 * SILENCE_S_MAX);
        const { events, rest } = takeEvents(text + value);
        if (rest.length > EVENT_LENGTH_MAX) throw new Error("an event without an end");
        text = rest;
        if (events.length > 0) this.#live();
        for (const each of events) this.onEvent(each.event, JSON.parse(each.data));
      }
    } finally {
      clearTimeout(silence);
      this.#connected = false;
      abort.abort();
    }
  }

  #live() {
    this.#tries = 0;
    if (!this.#connected) this.onState("live");
    this.#connected = true;
  }
}
