// Performs runs of queues beside one another, as docs/worker-protocol.md asks: heartbeats beside the work, reports until
// an answer comes, a stop that loses nothing. Time is counted by the monotonic clock alone.

import { hostname } from "node:os";
import type { Horarium } from "./client.js";
import { Conflict, Discard, NotFound, Retry, Unavailable } from "./errors.js";
import { backoff, isRefused, sleep } from "./transport.js";
import type { RunView } from "./types.js";

const LEASE_SECONDS_MIN = 1;
const BACKOFF_SECONDS_MAX = 30;
const ERROR_CHARS_MAX = 8_000;
/** How long work that outlived the grace of a stop gets to react to its signal. */
const ABORT_SECONDS = 5;
/** How long after its claim an answer may be on its way that must not be cut off. */
const HAND_OVER_SECONDS = 0.5;
const LINES_MAX = 1000;
/** The longest pause that a failure may ask for. */
const PAUSE_SECONDS_MAX = 86_400;
/** Runs that one claim may ask for. */
const CLAIM_MAX = 1000;

/** A claimed run, as its handler sees it. */
export class ClaimedRun<Payload = unknown> {
  readonly view: RunView;
  readonly payload: Payload;
  readonly token: number;
  /** Of the lease, in seconds. */
  readonly leaseSeconds: number;
  /** Aborted when a cancel was asked, the lease is lost, or the worker stops and can't wait. */
  readonly signal: AbortSignal;
  readonly #client: Horarium;
  readonly #abort = new AbortController();
  leaseLost = false;

  constructor(view: RunView, client: Horarium) {
    if (view.lease === undefined) throw new Error("a claimed run has a lease");
    this.view = view;
    this.payload = view.payload as Payload;
    this.token = view.lease.token;
    this.signal = this.#abort.signal;
    this.#client = client;
    const begun = Date.parse(view.started_at ?? view.lease.expires_at);
    this.leaseSeconds = Math.max((Date.parse(view.lease.expires_at) - begun) / 1000, LEASE_SECONDS_MIN);
  }

  /** The same for every attempt: an idempotency key. */
  get id(): string {
    return this.view.id;
  }

  get job(): string | null {
    return this.view.job;
  }

  get attempt(): number {
    return this.view.attempt;
  }

  /** Keep `progress` with the run. (The lease is renewed by itself.) */
  async progress(progress: unknown): Promise<void> {
    await this.beat(progress);
  }

  /** Add lines to the run's log. */
  async log(...lines: string[]): Promise<void> {
    for (let start = 0; start < lines.length; start += LINES_MAX) {
      await this.#client.addLines(this.id, this.token, lines.slice(start, start + LINES_MAX).map(asText));
    }
  }

  /** @internal */
  async beat(progress?: unknown, withinSeconds?: number): Promise<void> {
    const options = { progress, ...(withinSeconds === undefined ? {} : { withinSeconds }) };
    try {
      const pulse = await this.#client.heartbeat(this.id, this.token, options);
      if (pulse.cancel_requested) this.abort("a cancel was asked");
    } catch (error) {
      if (error instanceof Conflict || error instanceof NotFound) this.lose();
      throw error;
    }
  }

  /** @internal */
  lose(): void {
    this.leaseLost = true;
    this.abort("the lease is lost");
  }

  /** @internal */
  abort(reason: string): void {
    if (!this.signal.aborted) this.#abort.abort(new Error(reason));
  }
}

/** Performs a run: what it returns is the result (JSON), throwing is a failure; `Retry` and `Discard` say more. */
export type Handler = (run: ClaimedRun<any>, signal: AbortSignal) => unknown;

export interface WorkerOptions {
  queues: Record<string, Handler>;
  /** Runs that are performed at one time. Left out: 8. */
  concurrency?: number;
  name?: string;
  /** Seconds that one claim waits. */
  waitSeconds?: number;
  /** Seconds that a stop waits for runs under way, before their signals are aborted. */
  graceSeconds?: number;
  /** Told of what can't be helped here: outages, lost leases, refused reports. Left out: `console.warn`. */
  warn?: (message: string) => void;
}

export class Worker {
  readonly name: string;
  readonly #client: Horarium;
  readonly #options: Required<Omit<WorkerOptions, "name">>;
  readonly #stop = new AbortController();
  readonly #running = new Map<ClaimedRun, Promise<void>>();
  #wake: () => void = () => {};

  constructor(client: Horarium, options: WorkerOptions) {
    const defaults = { concurrency: 8, waitSeconds: 20, graceSeconds: 30, warn: (message: string) => console.warn(message) };
    this.#options = { ...defaults, ...options };
    if (Object.keys(options.queues).length === 0) throw new TypeError("queues: name at least one, with its handler");
    if (!(this.#options.concurrency >= 1)) throw new TypeError(`concurrency: at least 1, not ${options.concurrency}`);
    this.name = options.name ?? `${hostname()}-${process.pid}`;
    this.#client = client;
  }

  /** Claim and perform until `stop()`, or until the signal is aborted; then finish what is under way, and return. Throws
   * what the server refuses for good, such as a wrong key. */
  async run(options: { signal?: AbortSignal } = {}): Promise<void> {
    const stop = () => this.stop();
    if (options.signal?.aborted) stop();
    options.signal?.addEventListener("abort", stop, { once: true });
    try {
      await this.#claimLoop();
    } finally {
      options.signal?.removeEventListener("abort", stop);
      this.stop();
      await this.#drain();
    }
  }

  /** `run`, until SIGTERM or SIGINT. A second signal ends the process. */
  async runUntilSignal(): Promise<void> {
    const stop = () => {
      for (const name of ["SIGTERM", "SIGINT"] as const) process.removeListener(name, stop);
      this.stop();
    };
    for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, stop);
    try {
      await this.run();
    } finally {
      for (const name of ["SIGTERM", "SIGINT"] as const) process.removeListener(name, stop);
    }
  }

  /** Claim no more. `run` returns when the runs under way are reported. */
  stop(): void {
    this.#stop.abort();
    this.#wake();
  }

  async #claimLoop(): Promise<void> {
    const stopping = this.#stop.signal;
    const queues = Object.keys(this.#options.queues);
    for (let failures = 0; !stopping.aborted; ) {
      const free = this.#options.concurrency - this.#running.size;
      if (free <= 0) {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      try {
        for (const view of await this.#claim(queues, Math.min(free, CLAIM_MAX))) this.#begin(view);
        failures = 0;
      } catch (error) {
        if (stopping.aborted) return;
        if (!(error instanceof Unavailable)) throw error;
        if (failures++ === 0) this.#options.warn(`claim: ${error.message}; trying again`);
        await sleep(Math.max(error.retryAfterSeconds, backoff(failures, BACKOFF_SECONDS_MAX)), stopping);
      }
    }
  }

  /** A claim that was sent just before a stop is answered first: cut off, its runs would be lost for a lease. */
  async #claim(queues: string[], limit: number): Promise<RunView[]> {
    const [cut, answered, asked] = [new AbortController(), new AbortController(), performance.now()];
    const stop = async () => {
      await sleep(Math.max(0, HAND_OVER_SECONDS - (performance.now() - asked) / 1000), answered.signal);
      cut.abort();
    };
    this.#stop.signal.addEventListener("abort", stop, { once: true });
    try {
      const { waitSeconds } = this.#options;
      return await this.#client.claim(queues, { limit, waitSeconds, worker: this.name, signal: cut.signal });
    } finally {
      this.#stop.signal.removeEventListener("abort", stop);
      answered.abort();
    }
  }

  #begin(view: RunView): void {
    const run = new ClaimedRun(view, this.#client);
    const performing = this.#perform(run).catch((error: unknown) => {
      this.#options.warn(`run ${run.id}: its end was refused: ${message(error)}`);
    });
    this.#running.set(run, performing);
    void performing.then(() => {
      this.#running.delete(run);
      this.#wake();
    });
  }

  async #perform(run: ClaimedRun): Promise<void> {
    const done = new AbortController();
    const beating = this.#keep(run, done.signal);
    try {
      await this.#report(run, await this.#attempt(run));
    } finally {
      done.abort();
      await beating;
    }
  }

  /** Heartbeats, every third of the lease; one that fails is repeated within a second, for as long as the lease lasts. */
  async #keep(run: ClaimedRun, done: AbortSignal): Promise<void> {
    const pace = run.leaseSeconds / 3;
    let ends = performance.now() + run.leaseSeconds * 1000;
    let wait = pace;
    for (;;) {
      await sleep(wait, done);
      if (done.aborted || run.leaseLost) return;
      const asked = performance.now();
      try {
        await run.beat(undefined, pace);
        ends = asked + run.leaseSeconds * 1000;
        wait = pace;
      } catch (error) {
        if (done.aborted) return;
        wait = Math.min(pace, error instanceof Unavailable ? Math.max(error.retryAfterSeconds, 0.5) : 0.5);
        if (run.leaseLost || performance.now() >= ends) {
          run.lose();
          this.#options.warn(`run ${run.id}: ${message(error)}`);
          return;
        }
      }
    }
  }

  /** Perform it: the call that reports its end. */
  async #attempt(run: ClaimedRun): Promise<() => Promise<unknown>> {
    const handler = this.#options.queues[run.view.queue.replace(/^pull\//, "")] ?? this.#options.queues[run.view.queue];
    try {
      if (handler === undefined) throw new Discard(`this worker has no handler for ${run.view.queue}`);
      const result = await handler(run, run.signal);
      if (result !== undefined) checkJson(result);
      return () => this.#client.complete(run.id, run.token, result);
    } catch (error) {
      const options: { retryable?: boolean; retry_after_seconds?: number } = {};
      if (error instanceof Discard) options.retryable = false;
      if (error instanceof Retry && error.afterSeconds !== undefined && !Number.isNaN(error.afterSeconds)) {
        options.retry_after_seconds = Math.min(Math.max(error.afterSeconds, 0), PAUSE_SECONDS_MAX);
      }
      return () => this.#client.fail(run.id, run.token, asText(message(error).slice(0, ERROR_CHARS_MAX)), options);
    }
  }

  /** Report until an answer comes, or the lease is lost. */
  async #report(run: ClaimedRun, report: () => Promise<unknown>): Promise<void> {
    let refused = false;
    for (let failures = 1; !run.leaseLost; failures++) {
      try {
        await report();
        return;
      } catch (error) {
        if (error instanceof Conflict || error instanceof NotFound) return;
        if (isRefused(error) && !refused) {
          refused = true;
          const said = asText(`its end was refused: ${error.message}`.slice(0, ERROR_CHARS_MAX));
          report = () => this.#client.fail(run.id, run.token, said, { retryable: false });
          continue;
        }
        if (!(error instanceof Unavailable)) throw error;
        await sleep(Math.max(error.retryAfterSeconds, backoff(failures, BACKOFF_SECONDS_MAX)));
      }
    }
  }

  async #drain(): Promise<void> {
    await this.#idle(this.#options.graceSeconds);
    for (const run of this.#running.keys()) run.abort("the worker stops");
    await this.#idle(ABORT_SECONDS);
    for (const run of this.#running.keys()) {
      run.lose();
      this.#options.warn(`run ${run.id} did not stop; it is given to another worker when its lease ends`);
    }
  }

  /** Resolves when all runs are reported, or after so many seconds. */
  async #idle(seconds: number): Promise<void> {
    const over = new AbortController();
    const all = Promise.all(this.#running.values()).finally(() => over.abort());
    await Promise.race([all, sleep(seconds, over.signal)]);
    over.abort();
  }
}

/** Throws Discard for what JSON has no text for. */
function checkJson(result: unknown): void {
  let text: string | undefined;
  try {
    text = JSON.stringify(result);
  } catch (error) {
    throw new Discard(`its result is no JSON: ${message(error)}`);
  }
  if (text === undefined) throw new Discard("its result is no JSON");
}

/** The text of anything that was thrown. */
function message(error: unknown): string {
  try {
    return error instanceof Error ? String(error.message || error.name) : String(error);
  } catch {
    return "an error that has no text";
  }
}

/** Without halves of surrogate pairs, which the server refuses: a cut may make one. */
function asText(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}
