// What the client promises, against the server of HORARIUM_URL: `node dist/test/client.js`.

import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { Conflict, Discard, Forbidden, Horarium, Invalid, NotFound, Unavailable, Worker } from "../src/index.js";

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
await work();
