// croner: `npm install --prefix conformance/adapters croner`.

import { createInterface } from "node:readline";
import { Cron } from "croner";

for await (const line of createInterface({ input: process.stdin })) {
  const { id, kind, rule, zone, after, count } = JSON.parse(line);
  if (kind !== "cron") continue;
  try {
    const fires = new Cron(rule, { timezone: zone }).nextRuns(count, new Date(after));
    console.log(JSON.stringify({ id, fires: fires.map((at) => at.toISOString()) }));
  } catch (error) {
    console.log(JSON.stringify({ id, error: String(error) }));
  }
}
