export * from "./client.js";
export * from "./errors.js";
export type * as types from "./types.js";
export type { JobDefinition, JobView, LineView, Problem, RunDefinition, RunView, State, Trigger } from "./types.js";
export { ClaimedRun, Worker, type Handler, type WorkerOptions } from "./worker.js";
