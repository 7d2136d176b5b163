// The API as methods. Names of fields are those of the API; lists are async iterators that fetch page by page.

import { randomUUID } from "node:crypto";
import { Transport, type Query } from "./transport.js";
import type {
  AddedRun,
  BulkAnswer,
  BulkRequest,
  Fires,
  JobDefinition,
  JobView,
  LineRequest,
  LineView,
  LogView,
  PauseRequest,
  PulseView,
  Report,
  RunBatch,
  RunDefinition,
  RunView,
  Settled,
  State,
  Trigger,
} from "./types.js";

const PAGE = 200;
/** Runs in one request of `enqueueMany`. */
const BATCH_MAX = 1000;
/** How much longer than the long poll itself its answer may take. */
const POLL_MARGIN_SECONDS = 15;

export interface Options {
  /** The server. Left out: HORARIUM_URL, or http://127.0.0.1:8080. */
  url?: string | undefined;
  /** A key of the API. Left out: HORARIUM_API_KEY. */
  key?: string | undefined;
}

/** What a one-off run may have beside its queue and payload. */
export type RunOptions = Omit<Partial<RunDefinition>, "target" | "payload">;
/** Of a job that is put: `name` may be given beside. */
export type Job = JobDefinition;

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

export class Horarium {
  readonly jobs: Jobs;
  readonly runs: Runs;
  readonly #transport: Transport;

  constructor(options: Options = {}) {
    const url = options.url ?? (process.env["HORARIUM_URL"] || "http://127.0.0.1:8080");
    this.#transport = new Transport(url, options.key ?? process.env["HORARIUM_API_KEY"]);
    this.jobs = new Jobs(this.#transport);
    this.runs = new Runs(this.#transport);
  }

  get url(): string {
    return this.#transport.url;
  }

  /** A run for the workers of this queue: now, `at` an instant, or after `delay_seconds`. With a `unique_key` that a run
   * holds already, that run. A lost answer makes no second run. */
  async enqueue(queue: string, payload?: unknown, options: RunOptions = {}): Promise<RunView> {
    return this.runs.add({ ...options, target: { type: "queue", queue }, payload });
  }

  /** Many runs, a thousand in one transaction: what became of each, in their order. */
  async enqueueMany(queue: string, payloads: readonly unknown[], options: RunOptions = {}): Promise<AddedRun[]> {
    const added: AddedRun[] = [];
    for (let start = 0; start < payloads.length; start += BATCH_MAX) {
      const runs = payloads
        .slice(start, start + BATCH_MAX)
        .map((payload) => ({ ...options, target: { type: "queue", queue }, payload }));
      const headers = { "Idempotency-Key": randomUUID() };
      const answer = await this.#transport.request("POST", "/runs/batch", { body: { runs }, headers });
      added.push(...(answer.body as AddedRun[]));
    }
    return added;
  }

  /** When a trigger would fire, and its rule in words. */
  async preview(trigger: Trigger, options: { after?: string; count?: number } = {}): Promise<Fires> {
    return (await this.#transport.request("POST", "/preview", { body: { trigger, ...options } })).body as Fires;
  }

  // ---- for workers

  /** Due runs of these queues, each with its lease; an empty list where none was due. */
  async claim(
    queues: readonly string[],
    options: { limit?: number; waitSeconds?: number; worker?: string; signal?: AbortSignal } = {},
  ): Promise<RunView[]> {
    const waitSeconds = options.waitSeconds ?? 0;
    const answer = await this.#transport.request("POST", "/runs/claim", {
      body: { queues, limit: options.limit ?? 1, wait_seconds: waitSeconds, worker: options.worker ?? "typescript" },
      timeoutSeconds: waitSeconds + POLL_MARGIN_SECONDS,
      attemptsMax: 1,
      signal: options.signal,
    });
    return answer.status === 204 ? [] : (answer.body as RunBatch).runs;
  }

  /** Renew the lease, and keep `progress`. Throws LeaseLost. */
  async heartbeat(id: string, token: number, options: { progress?: unknown; withinSeconds?: number } = {}): Promise<PulseView> {
    const within = options.withinSeconds;
    const answer = await this.#transport.request("POST", `/runs/${segment(id)}/heartbeat`, {
      body: { token, progress: options.progress },
      ...(within === undefined ? {} : { timeoutSeconds: within, attemptsMax: 1 }),
    });
    return answer.body as PulseView;
  }

  async complete(id: string, token: number, result?: unknown): Promise<RunView> {
    return (await this.#transport.request("POST", `/runs/${segment(id)}/complete`, { body: { token, result } })).body as RunView;
  }

  async fail(
    id: string,
    token: number,
    error: string,
    options: { retryable?: boolean; retry_after_seconds?: number } = {},
  ): Promise<RunView> {
    const body = { token, error, ...options };
    return (await this.#transport.request("POST", `/runs/${segment(id)}/fail`, { body })).body as RunView;
  }

  /** Up to 1,000 reports, each judged by itself. */
  async settle(reports: readonly Report[]): Promise<Settled[]> {
    return (await this.#transport.request("POST", "/runs/settle", { body: reports })).body as Settled[];
  }

  async addLines(id: string, token: number, lines: readonly (string | LineRequest)[]): Promise<void> {
    await this.#transport.request("POST", `/runs/${segment(id)}/log`, { body: { token, lines }, repeatable: false });
  }
}

export class Jobs {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Define the job, or bring it to this content; unchanged content changes nothing. */
  async put(job: Job): Promise<JobView> {
    return (await this.#transport.request("PUT", path(job.name), { body: job })).body as JobView;
  }

  async get(name: string): Promise<JobView> {
    return (await this.#transport.request("GET", path(name))).body as JobView;
  }

  /** Jobs by name. */
  list(where: { label?: string[]; enabled?: boolean; prefix?: string; finished?: "any" | "true" | "false" } = {}): AsyncGenerator<JobView> {
    return pages<JobView>(this.#transport, "/jobs", where);
  }

  async delete(name: string): Promise<void> {
    await this.#transport.request("DELETE", path(name));
  }

  async pause(name: string, request: PauseRequest = {}): Promise<JobView> {
    return (await this.#transport.request("POST", `${path(name)}/pause`, { body: request })).body as JobView;
  }

  async resume(name: string): Promise<JobView> {
    return (await this.#transport.request("POST", `${path(name)}/resume`, { body: {} })).body as JobView;
  }

  /** A run now. A lost answer makes no second run; `idempotencyKey` extends that over calls of yours. */
  async trigger(name: string, payload?: unknown, options: { idempotencyKey?: string } = {}): Promise<RunView> {
    const headers = { "Idempotency-Key": options.idempotencyKey ?? randomUUID() };
    return (await this.#transport.request("POST", `${path(name)}/trigger`, { body: { payload }, headers })).body as RunView;
  }

  async fires(name: string, count = 10): Promise<Fires> {
    return (await this.#transport.request("GET", `${path(name)}/fires`, { query: { count } })).body as Fires;
  }
}

export class Runs {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** A run that belongs to no job, with a target of any type. */
  async add(run: RunDefinition): Promise<RunView> {
    const headers: Record<string, string> = run.unique_key ? {} : { "Idempotency-Key": randomUUID() };
    return (await this.#transport.request("POST", "/runs", { body: run, headers })).body as RunView;
  }

  async get(id: string): Promise<RunView> {
    return (await this.#transport.request("GET", `/runs/${segment(id)}`)).body as RunView;
  }

  /** Runs, the newest fire time first. */
  list(where: { job?: string; state?: State[]; queue?: string; since?: string; until?: string } = {}): AsyncGenerator<RunView> {
    return pages<RunView>(this.#transport, "/runs", where);
  }

  async cancel(id: string, reason?: string): Promise<RunView> {
    return (await this.#transport.request("POST", `/runs/${segment(id)}/cancel`, { body: { reason } })).body as RunView;
  }

  /** A new run for one that failed, was cancelled or was skipped. */
  async retry(id: string): Promise<RunView> {
    return (await this.#transport.request("POST", `/runs/${segment(id)}/retry`, { body: {} })).body as RunView;
  }

  /** Retry those that fit, one bounded batch: call again with its `cursor`. */
  async retryMany(which: BulkRequest): Promise<BulkAnswer> {
    return (await this.#transport.request("POST", "/runs/retry", { body: which })).body as BulkAnswer;
  }

  /** The lines of a run's log up to now. */
  async *log(id: string): AsyncGenerator<LineView> {
    let after: string | null = null;
    for (;;) {
      const query: Query = { limit: 1000, after: after ?? undefined };
      const page = (await this.#transport.request("GET", `/runs/${segment(id)}/log`, { query })).body as LogView;
      yield* page.items;
      if (page.items.length === 0 || page.next_cursor === null) return;
      after = page.next_cursor;
    }
  }
}

async function* pages<T>(transport: Transport, path: string, where: Query): AsyncGenerator<T> {
  let cursor: string | undefined;
  do {
    const answer = await transport.request("GET", path, { query: { ...where, limit: PAGE, cursor } });
    const page = answer.body as Page<T>;
    yield* page.items;
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
}

function path(name: string): string {
  return `/jobs/${segment(name)}`;
}

function segment(text: string): string {
  return encodeURIComponent(text);
}
