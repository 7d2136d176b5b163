// Requests to one server: what can be repeated without harm is repeated, with jitter, and `Retry-After` is honoured.
// `fetch` keeps connections open by itself.

import { errorOf, HorariumError, Unavailable } from "./errors.js";
import type { Problem } from "./types.js";

const ATTEMPTS_MAX = 4;
const TIMEOUT_SECONDS = 30;
const BACKOFF_SECONDS = 0.1;
const BACKOFF_SECONDS_MAX = 5;
const RETRY_AFTER_SECONDS_MAX = 30;

export type Query = Record<string, string | number | boolean | readonly (string | number)[] | undefined>;

export interface Asked {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  /** Twice has the effect of once. Left out: true. */
  repeatable?: boolean;
  timeoutSeconds?: number;
  attemptsMax?: number;
  signal?: AbortSignal | undefined;
}

export interface Answer {
  status: number;
  body: unknown;
}

export class Transport {
  readonly url: string;
  readonly #headers: Record<string, string>;

  constructor(url: string, key: string | undefined) {
    this.url = new URL(url).href.replace(/\/+$/, "");
    this.#headers = { Accept: "application/json", "User-Agent": "horarium-typescript" };
    if (key !== undefined) this.#headers["Authorization"] = `Bearer ${key}`;
  }

  /** The answer, if its status is below 300. Throws a `HorariumError`, or the reason of an aborted signal. */
  async request(method: string, path: string, asked: Asked = {}): Promise<Answer> {
    const attempts = asked.attemptsMax ?? ATTEMPTS_MAX;
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#once(method, path, asked);
      } catch (error) {
        asked.signal?.throwIfAborted();
        const again = error instanceof Unavailable && (error.status === 429 || asked.repeatable !== false);
        if (!again || attempt >= attempts) throw error;
        await sleep(Math.max(error.retryAfterSeconds, backoff(attempt)), asked.signal);
      }
    }
  }

  async #once(method: string, path: string, asked: Asked): Promise<Answer> {
    const headers: Record<string, string> = { ...this.#headers, ...asked.headers };
    const init: RequestInit = { method, headers, redirect: "error" };
    if (asked.body !== undefined) {
      headers["Content-Type"] ??= "application/json";
      init.body = JSON.stringify(asked.body);
    }
    const timeout = AbortSignal.timeout(Math.ceil((asked.timeoutSeconds ?? TIMEOUT_SECONDS) * 1000)); // takes no fraction
    init.signal = asked.signal ? AbortSignal.any([asked.signal, timeout]) : timeout;
    let answer: Response;
    let text: string;
    try {
      answer = await fetch(`${this.url}/api/v1${path}${queryText(asked.query)}`, init);
      text = await answer.text();
    } catch (error) {
      throw new Unavailable({ detail: `no answer from ${this.url}: ${reason(error)}`, code: "outage" }, 0);
    }
    const body = parsed(text);
    if (answer.status < 300) {
      if (body !== undefined) return { status: answer.status, body };
      throw new Unavailable({ detail: `no answer from ${this.url}: what came is no JSON`, code: "outage" }, 0);
    }
    const problem = typeof body === "object" && body !== null ? (body as Partial<Problem>) : {};
    const error = errorOf(answer.status, problem);
    if (error instanceof Unavailable) error.retryAfterSeconds = retryAfter(answer.headers.get("retry-after"));
    throw error;
  }
}

/** Doubling, half of it by chance, so that many clients do not come back as one. */
export function backoff(attempt: number, most = BACKOFF_SECONDS_MAX): number {
  return Math.min(BACKOFF_SECONDS * 2 ** (attempt - 1), most) * (0.5 + Math.random() / 2);
}

/** Resolves after so many seconds, or at once when the signal is aborted. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    signal?.addEventListener("abort", done, { once: true });
  });
}

export function isRefused(error: unknown): error is HorariumError {
  return error instanceof HorariumError && !(error instanceof Unavailable);
}

function retryAfter(text: string | null): number {
  return text !== null && /^\d{1,6}$/.test(text.trim()) ? Math.min(Number(text), RETRY_AFTER_SECONDS_MAX) : 0;
}

function parsed(text: string): unknown {
  try {
    return text === "" ? null : JSON.parse(text);
  } catch {
    return undefined;
  }
}

function reason(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}

function queryText(query: Query = {}): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) if (each !== undefined) pairs.append(name, String(each));
  }
  return pairs.size ? `?${pairs}` : "";
}
