// What a server refuses, by kind. `code` is stable; decide by it or by the class, and show the message.

import type { Problem } from "./types.js";

export class HorariumError extends Error {
  readonly status: number;
  readonly code: string;
  readonly field: string | undefined;
  readonly problem: Partial<Problem>;

  constructor(problem: Partial<Problem>, status: number) {
    super(problem.detail ?? problem.title ?? `the server answered ${status}`);
    this.name = new.target.name;
    this.status = status;
    this.code = problem.code ?? "error";
    this.field = problem.field;
    this.problem = problem;
  }
}

/** 400, 413, 415, 422: what was sent is wrong. */
export class Invalid extends HorariumError {}
/** 401, 403: no key, or one that may not do this. */
export class Forbidden extends HorariumError {}
/** 404. */
export class NotFound extends HorariumError {}
/** 409: right in itself, but not in the present state. */
export class Conflict extends HorariumError {}
/** 409 `lease_lost`: another worker has the run, or it has ended. */
export class LeaseLost extends Conflict {}
/** 429, 5xx or no answer (status 0): try again later. */
export class Unavailable extends HorariumError {
  retryAfterSeconds = 0;
}

export function errorOf(status: number, problem: Partial<Problem>): HorariumError {
  if (status === 404) return new NotFound(problem, status);
  if (status === 409) return problem.code === "lease_lost" ? new LeaseLost(problem, status) : new Conflict(problem, status);
  if (status === 401 || status === 403) return new Forbidden(problem, status);
  if (status === 0 || status === 429 || status >= 500) return new Unavailable(problem, status);
  return new Invalid(problem, status);
}

/** Thrown by a handler: the attempt failed, and the next one begins after so many seconds. */
export class Retry extends Error {
  readonly afterSeconds: number | undefined;

  constructor(message: string, options: { afterSeconds?: number } = {}) {
    super(message);
    this.afterSeconds = options.afterSeconds;
  }
}

/** Thrown by a handler: the run failed for good. */
export class Discard extends Error {}
