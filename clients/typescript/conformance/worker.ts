// The worker of this package, as `horarium conformance worker` asks for it.

import { setTimeout as delay } from "node:timers/promises";
import { Discard, Horarium, Retry, Worker, type ClaimedRun } from "../src/index.js";

interface Asked {
  do: "complete" | "fail";
  seconds?: number;
  progress?: unknown;
  result?: unknown;
  error?: string;
  retryable?: boolean;
  retry_after_seconds?: number;
}

async function perform(run: ClaimedRun<Asked>, signal: AbortSignal): Promise<unknown> {
  const asked = run.payload;
  if (asked.progress !== undefined) await run.progress(asked.progress);
  await delay((asked.seconds ?? 0) * 1000, undefined, { signal });
  if (asked.do === "complete") return asked.result;
  if (asked.retryable === false) throw new Discard(asked.error);
  throw new Retry(asked.error ?? "", { afterSeconds: asked.retry_after_seconds });
}

const client = new Horarium({ url: process.env["HORARIUM_URL"], key: process.env["HORARIUM_KEY"] });
const queue = process.env["HORARIUM_QUEUE"] ?? "";
const concurrency = Number(process.env["HORARIUM_SLOTS"] ?? 2);
await new Worker(client, { queues: { [queue]: perform }, concurrency }).runUntilSignal();
