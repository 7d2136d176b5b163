// What the client promises, against the server of HORARIUM_URL: `node dist/test/client.js`.

import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { Conflict, Discard, Forbidden, Horarium, Invalid, NotFound, Retry, Unavailable, Worker } from "../src/index.js";

const client = new Horarium();
const trigger = { type: "cron", expression: "0 3 * * *", timezone: "Europe/Berlin" } as const;

async function listed<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

async function jobs(): Promise<void> {
  const job = { name: "ts-job", trigger, target: { type: "queue", queue: "ts-idle" }, labels: { by: "ts" } } as const;
  const put = await client.jobs.put(job);
  assert.match(put.words, /Europe.Berlin/);
  assert.equal((await client.jobs.put(job)).version, put.version);
  assert.deepEqual((await listed(client.jobs.list({ label: ["by=ts"] }))).map((each) => each.name), ["ts-job"]);
  const run = await client.jobs.trigger("ts-job", { n: 1 }, { idempotencyKey: "once" });
  assert.equal((await client.jobs.trigger("ts-job", { n: 1 }, { idempotencyKey: "once" })).id, run.id);
  assert.equal((await client.jobs.pause("ts-job", { reason: "a test" })).pause_reason, "a test");
  assert.equal((await client.jobs.resume("ts-job")).paused_at, null);
  assert.equal((await client.jobs.fires("ts-job", 3)).fires.length, 3);
  assert.equal((await client.preview(trigger, { count: 2 })).fires.length, 2);
  await client.jobs.delete("ts-job");
}

async function runs(): Promise<void> {
  const first = await client.enqueue("ts-many", { n: 0 }, { unique_key: "the-one" });
  assert.equal((await client.enqueue("ts-many", { n: 0 }, { unique_key: "the-one" })).id, first.id);
  const added = await client.enqueueMany("ts-many", Array.from({ length: 1250 }, (_, n) => ({ n })));
  assert.equal(added.filter((each) => each.outcome === "created").length, 1250);
  const found = await listed(client.runs.list({ queue: "ts-many", state: ["pending"] }));
  assert.equal(new Set(found.map((run) => run.id)).size, 1251);
  assert.equal((await client.runs.cancel(first.id, "no more")).state, "cancelled");
  assert.notEqual((await client.runs.retry(first.id)).id, first.id);
  assert.equal((await client.claim(["ts-none"])).length, 0);
}

async function errors(): Promise<void> {
  await assert.rejects(client.jobs.get("none"), (error: NotFound) => error instanceof NotFound && error.code === "not_found");
  await assert.rejects(client.enqueue("no queue"), (error: Invalid) => error instanceof Invalid && error.status === 422);
  await assert.rejects(new Horarium({ key: "a wrong key, of some length" }).jobs.get("x"), Forbidden);
  const run = await client.enqueue("ts-errors");
  await assert.rejects(client.complete(run.id, 1), Conflict);
  await assert.rejects(new Horarium({ url: "http://127.0.0.1:9" }).jobs.get("x"), Unavailable);
}

/** A lost answer is asked for again, and the key that makes it harmless is the same. */
async function lostAnswers(): Promise<void> {
  const keys: unknown[] = [];
  const server: Server = createServer((request, response) => {
    keys.push(request.headers["idempotency-key"]);
    if (keys.length === 1) request.socket.destroy();
    else response.end(JSON.stringify({ id: "the run" }));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  assert.equal((await new Horarium({ url: `http://127.0.0.1:${port}` }).enqueue("q")).id, "the run");
  assert.equal(keys.length, 2);
  assert.ok(keys[0] !== undefined && keys[0] === keys[1]);
  server.close();
}

/** A server of its own, that answers as `answer` says. */
async function against(answer: (path: string, count: number) => [number, string], use: (client: Horarium) => Promise<void>): Promise<void> {
  const counts = new Map<string, number>();
  const server: Server = createServer((request, response) => {
    const path = request.url ?? "";
    counts.set(path, (counts.get(path) ?? 0) + 1);
    const [status, text] = answer(path, counts.get(path) ?? 0);
    request.resume();
    response.writeHead(status).end(text);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await use(new Horarium({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }));
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** What is no JSON, as of a proxy that has a page of its own, is no answer of the server. */
async function answersOfOthers(): Promise<void> {
  const page = "<html>one moment</html>";
  await against((_, count) => [200, count < 3 ? page : '{"id": "the run"}'], async (client) => {
    assert.equal((await client.runs.get("x")).id, "the run");
  });
  await against(() => [200, page], async (client) => {
    await assert.rejects(client.claim(["q"]), (error: Unavailable) => error instanceof Unavailable && error.status === 0);
  });
}

/** A result that is refused is reported as a failure, for as long as it takes. */
async function refusedEnds(): Promise<void> {
  const lease = { token: 7, expires_at: "2030-01-01T00:00:30Z" };
  const run = { id: "r", job: null, queue: "pull/q", attempt: 1, payload: null, started_at: "2030-01-01T00:00:00Z", lease };
  const stop = new AbortController();
  let failed = 0;
  const answer = (path: string, count: number): [number, string] => {
    if (path.endsWith("/claim")) return count === 1 ? [200, JSON.stringify({ runs: [run] })] : [204, ""];
    if (path.endsWith("/complete")) return [413, '{"code": "too_large", "detail": "too large"}'];
    failed = count;
    if (count > 4) stop.abort();
    return count > 4 ? [200, "{}"] : [503, ""];
  };
  await against(answer, async (client) => {
    const warned: string[] = [];
    const worker = new Worker(client, { queues: { q: () => "much" }, concurrency: 1, warn: (text) => warned.push(text) });
    await worker.run({ signal: AbortSignal.any([stop.signal, AbortSignal.timeout(20_000)]) });
    assert.deepEqual([failed, warned], [5, []]);
  });
}

/** Runs that are on their way when the worker stops are not lost. */
async function handedOver(): Promise<void> {
  const stop = new AbortController();
  const run = { id: "r", job: null, queue: "pull/q", attempt: 1, payload: null, lease: { token: 7, expires_at: "2030-01-01T00:00:30Z" } };
  const reported: string[] = [];
  const server: Server = createServer((request, response) => {
    request.resume();
    if (request.url?.endsWith("/claim")) {
      stop.abort();
      response.end(JSON.stringify({ runs: [run] }));
    } else {
      reported.push(request.url ?? "");
      response.end("{}");
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Worker(new Horarium({ url: `http://127.0.0.1:${port}` }), { queues: { q: () => 1 } }).run({ signal: stop.signal });
  assert.deepEqual(reported, ["/api/v1/runs/r/complete"]);
  server.closeAllConnections();
  server.close();
}

/** More places than a claim takes runs. */
async function manyPlaces(): Promise<void> {
  await client.enqueue("ts-wide");
  const stop = new AbortController();
  const worker = new Worker(client, { queues: { "ts-wide": () => stop.abort() }, concurrency: 1_500 });
  await worker.run({ signal: AbortSignal.any([stop.signal, AbortSignal.timeout(20_000)]) });
}

/** Pauses that the server does not take are brought to those that it takes; the failure is told. */
async function oddPauses(): Promise<void> {
  const odd = [7 * 86_400, -0.5, Number.NaN, Infinity];
  const asked = await Promise.all(odd.map((seconds) => client.enqueue("ts-odd", `${seconds}`)));
  const stop = new AbortController();
  const seen = new Set<string>();
  const worker = new Worker(client, {
    queues: {
      "ts-odd": (run) => {
        if (run.attempt > 1) return;
        seen.add(run.id);
        if (seen.size === odd.length) stop.abort();
        throw new Retry("busy", { afterSeconds: Number(run.payload) });
      },
    },
  });
  await worker.run({ signal: AbortSignal.any([stop.signal, AbortSignal.timeout(20_000)]) });
  for (const { id } of asked) {
    const told = (await client.runs.get(id)).history.map((entry) => entry.message);
    assert.ok(told.includes("attempt 1 failed: busy"), told.join(", "));
  }
}

/** Work whose result is no JSON is not done again: the next would be none either. */
async function oddResult(): Promise<void> {
  const { id } = await client.enqueue("ts-big");
  const stop = new AbortController();
  const worker = new Worker(client, { queues: { "ts-big": () => (stop.abort(), 1n) } });
  await worker.run({ signal: AbortSignal.any([stop.signal, AbortSignal.timeout(20_000)]) });
  const ended = await client.runs.get(id);
  assert.deepEqual([ended.state, ended.error?.startsWith("its result is no JSON: ")], ["failed", true]);
}

/** Anything may be thrown, also what has no text: the failure is told. */
async function oddErrors(): Promise<void> {
  const thrown = [Object.create(null) as unknown, Object.assign(new Error(), { message: { a: 1 } })];
  const asked = await Promise.all(thrown.map((_, n) => client.enqueue("ts-thrown", n, { retry: { attempts_max: 1 } })));
  const stop = new AbortController();
  let left = thrown.length;
  const fail = (run: { payload: number }): void => {
    if (--left === 0) stop.abort();
    throw thrown[run.payload];
  };
  const worker = new Worker(client, { queues: { "ts-thrown": fail } });
  await worker.run({ signal: AbortSignal.any([stop.signal, AbortSignal.timeout(20_000)]) });
  const ended = await Promise.all(asked.map(({ id }) => client.runs.get(id)));
  assert.deepEqual(ended.map((run) => run.error), ["an error that has no text", "[object Object]"]);
}

/** An empty variable, as of a compose file, is none. */
function emptyAddress(): void {
  const given = process.env["HORARIUM_URL"];
  process.env["HORARIUM_URL"] = "";
  assert.equal(new Horarium().url, "http://127.0.0.1:8080");
  process.env["HORARIUM_URL"] = given;
}

async function work(): Promise<void> {
  let most = 0;
  let now = 0;
  const [sum, bad] = [await client.enqueue("ts-sum", [1, 2, 3]), await client.enqueue("ts-bad")];
  const more = await Promise.all(Array.from({ length: 6 }, () => client.enqueue("ts-sum", [1])));
  const ended = new Set<string>();
  const stop = new AbortController();
  const worker = new Worker(client, {
    concurrency: 3,
    queues: {
      "ts-sum": async (run) => {
        most = Math.max(most, ++now);
        await run.log("begun");
        now--;
        ended.add(run.id);
        if (ended.size === 8) stop.abort();
        return (run.payload as number[]).reduce((a, b) => a + b);
      },
      "ts-bad": (run) => {
        ended.add(run.id);
        if (ended.size === 8) stop.abort();
        throw new Discard("as asked \ud83d");
      },
    },
  });
  await worker.run({ signal: stop.signal });
  assert.equal((await client.runs.get(sum.id)).result, 6);
  assert.deepEqual((await listed(client.runs.log(sum.id))).map((line) => line.text), ["begun"]);
  const failed = await client.runs.get(bad.id);
  assert.deepEqual([failed.state, failed.error], ["failed", "as asked \ufffd"]);
  for (const run of more) assert.equal((await client.runs.get(run.id)).state, "completed");
  assert.ok(most <= 3);
}

await jobs();
await runs();
await errors();
await lostAnswers();
await answersOfOthers();
await refusedEnds();
await handedOver();
await manyPlaces();
await oddPauses();
await oddResult();
await oddErrors();
emptyAddress();
await work();
