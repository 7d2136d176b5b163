// rrule.js: `npm install --prefix conformance/adapters rrule`. A rule on which it never ends is given a second.

import { createInterface } from "node:readline";
import { runInThisContext } from "node:vm";
import rrule from "rrule";

globalThis.firesOf = ({ rule, after, count }) => {
  const rules = rrule.rrulestr(rule);
  const fires = [];
  for (let at = new Date(after); fires.length < count; ) {
    at = rules.after(at, false);
    if (at === null) break;
    fires.push(at.toISOString());
  }
  return fires;
};

for await (const line of createInterface({ input: process.stdin })) {
  globalThis.asked = JSON.parse(line);
  const { id, kind } = globalThis.asked;
  if (kind !== "rrule") continue;
  try {
    console.log(JSON.stringify({ id, fires: runInThisContext("firesOf(asked)", { timeout: 1000 }) }));
  } catch (error) {
    console.log(JSON.stringify({ id, error: String(error) }));
  }
}
