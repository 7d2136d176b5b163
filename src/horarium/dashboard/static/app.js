// What pages can't do without a script: times that run, live updates, keys, choosing rows, copying.
"use strict";

const body = document.body;
const skew = Number(body.dataset.now) - Date.now();
const now = () => Date.now() + skew;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

// ---- the reader's time zone: the server writes its times in it from the next page on

if (body.dataset.zone !== undefined && body.dataset.zone !== zone && !document.cookie.includes("horarium_zone=" + encodeURIComponent(zone))) {
  document.cookie = "horarium_zone=" + encodeURIComponent(zone) + "; Path=/; SameSite=Strict; Max-Age=31536000";
  if (body.dataset.zone === "UTC") location.reload();
}

// ---- times that run

const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

function span(seconds) {
  if (seconds < 60) return seconds + " s";
  for (let place = 0; place < 3; place++) {
    const [unit, letter] = units[place];
    if (seconds >= unit) {
      const [smaller, small] = units[place + 1];
      const rest = Math.floor((seconds % unit) / smaller);
      return Math.floor(seconds / unit) + " " + letter + (rest ? " " + rest + " " + small : "");
    }
  }
  return "";
}

function relative(then) {
  const away = Math.trunc((then - now()) / 1000);
  if (away === 0) return "now";
  return away > 0 ? "in " + span(away) : span(-away) + " ago";
}

const clockFormat = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hourCycle: "h23" });
const utcFormat = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hourCycle: "h23", timeZone: "UTC" });

function tick() {
  for (const time of document.querySelectorAll("time[datetime][title]:not(.abs)")) {
    if (time.closest(".history")) continue;
    const text = relative(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
  const clock = document.getElementById("clock");
  if (clock) clock.textContent = clockFormat.format(now());
  if (away) sayAge();
  const utc = document.getElementById("clock-utc");
  if (utc) utc.textContent = utcFormat.format(now()) + " UTC";
}

setInterval(tick, 1000);

const daily = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const dated = { weekday: "short", day: "numeric", month: "short", ...daily };
const styles = { minute: dated, second: { ...dated, second: "2-digit" } };
const days = { day: { weekday: "short", day: "numeric", month: "short", year: "numeric" }, weekday: { weekday: "short", day: "numeric" }, long: { weekday: "long", day: "numeric", month: "long", year: "numeric" }, month: { month: "long", year: "numeric" } };
const formats = new Map();

function inZone(fields, timeZone) {
  const key = timeZone + JSON.stringify(fields);
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat(undefined, { ...fields, timeZone }));
  return formats.get(key);
}

// As much of a date as tells it from now: the time for today, the weekday within a week, else the day and the month.
function asFar(instant, timeZone) {
  const day = (at) => Math.round(Date.parse(new Date(at).toLocaleDateString("en-CA", { timeZone })) / 86400000);
  const away = Math.abs(day(instant) - day(now()));
  const time = Math.abs(instant - now()) < 120000 ? { ...daily, second: "2-digit" } : daily;
  if (away === 0) return time;
  if (away < 7) return { weekday: "short", ...time };
  const year = new Date(instant).getFullYear() === new Date(now()).getFullYear() ? {} : { year: "numeric" };
  return { day: "numeric", month: "short", ...year, ...time };
}

function write() {
  for (const time of document.querySelectorAll("time.abs:not([data-done])")) {
    time.dataset.done = "";
    const instant = Date.parse(time.dateTime);
    try {
      const near = Math.abs(instant - now()) < 86400000 ? daily : { day: "numeric", month: "short" };
      const fields = time.dataset.style === "near" ? near : styles[time.dataset.style] || asFar(instant, time.dataset.zone);
      time.textContent = inZone(fields, time.dataset.zone).format(instant);
      time.title = inZone(styles.second, "UTC").format(instant) + " UTC";
    } catch { /* a zone that this browser does not know */ }
  }
  for (const time of document.querySelectorAll("time[datetime][title]:not(.abs, [data-done])")) {
    time.dataset.done = "";
    const instant = Date.parse(time.dateTime);
    time.title = inZone(styles.second, zone).format(instant) + " " + zone + ", " + inZone(styles.second, "UTC").format(instant) + " UTC";
  }
  for (const one of document.querySelectorAll("[data-day]:not([data-done])")) {
    one.dataset.done = "";
    const format = inZone(one.dataset.until ? { ...days.long, weekday: undefined } : days[one.dataset.style], "UTC");
    one.textContent = one.dataset.until ? format.formatRange(Date.parse(one.dataset.day), Date.parse(one.dataset.until)) : format.format(Date.parse(one.dataset.day));
  }
}

// ---- live: something changed, so look again; never under the pointer or the focus

const regions = () => [...document.querySelectorAll("[data-live]")];
const live = document.getElementById("live");
const PAUSE = 2000;
const SPREAD = 300;
let looking = false;
let stale = false;
let looked = 0;
let spread = SPREAD; // pages look again at random within so many milliseconds: longer after each refusal

function busy(region) {
  const focused = document.activeElement;
  if (document.querySelector(":popover-open:not(#nav)")) return true;
  if (region.contains(focused) && focused !== document.body) return true;
  const chosen = [...region.querySelectorAll("input:checked")].some((one) => !one.defaultChecked);
  return chosen || typedIn(region) || region.querySelector("tr:hover, .strip:hover, .chart-box:hover, a:hover") !== null;
}

// A list whose reader is at work in it, or has scrolled down, is left as it is: how many rows are new is said above it.
const news = document.getElementById("news");
let held = false;
const reading = () => news !== null && (scrollY > 120 || regions().some(busy));

function sayNews(page) {
  const there = new Set([...document.querySelectorAll("tr[data-row] [data-open]")].map((link) => link.pathname));
  const fresh = [...page.querySelectorAll("tr[data-row] [data-open]")].filter((link) => !there.has(link.getAttribute("href"))).length;
  news.hidden = fresh === 0;
  news.textContent = fresh + " new";
  held = true;
}

if (news) news.addEventListener("click", () => {
  for (const box of document.querySelectorAll("input[name=chosen]:checked")) box.checked = false;
  news.blur();
  scrollTo(0, 0);
  look(true);
});

const narrow = document.getElementById("live-narrow");
const asMade = live ? live.textContent : ""; // what a page says that does not look again
function say(text, away) {
  if (narrow) narrow.textContent = away && text !== asMade && narrow.parentElement.checkVisibility() ? text : "";
  if (!live || live.textContent === text) return;
  live.textContent = text;
  live.classList.toggle("away", away);
}

// Since when the page may be out of date, and why. The line to the server and the store behind it fail one by one.
let away = null;
let unanswered = "";
const banner = document.getElementById("stale");
function sayAge() {
  if (!banner) return;
  banner.hidden = !away;
  if (away) banner.querySelector("b").textContent = "As of " + away + ", " + relative(awayAt) + ": " + (unanswered || "the server does not answer") + ".";
}
if (banner) banner.querySelector("button").addEventListener("click", () => { look(true); listen(); });
let awayAt = 0;
function sayStale(why) {
  if (!away) awayAt = now();
  away = away || clockFormat.format(awayAt);
  unanswered = why;
  sayAge();
  say((why ? "Stale since " + away + ": " + why : "Reconnecting, as of " + away), true);
}
function sayLive() {
  away = null;
  unanswered = "";
  sayAge();
  const follows = regions().length > 0;
  say(follows ? "Live" : asMade, !follows);
}

// A form or a link that is on its way is not to be overtaken by a reload: a sign-out ends on the page that it leads to.
let left = -Infinity;
addEventListener("beforeunload", () => { left = Date.now(); });
function reload() {
  if (Date.now() - left > 10000) location.reload();
  else stale = true;
}

async function look(asked) {
  if (looking) stale = true; // what happened since this look began is looked for after it
  if (looking || document.hidden || !regions().length) return;
  const leave = !asked && reading();
  looking = true;
  stale = false;
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "manual" });
    if (answer.ok) {
      spread = SPREAD;
      if (unanswered) sayLive();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const places = document.getElementById("places");
      const counted = page.getElementById("places");
      if (counted && !places.contains(document.activeElement)) places.replaceChildren(...counted.childNodes);
      if (leave) { sayNews(page); return; }
      held = false;
      if (news) news.hidden = true;
      for (const region of regions()) {
        const fresh = page.getElementById(region.id);
        if (!fresh && "again" in region.dataset && !document.activeElement.matches("input, select")) { reload(); return; }
        if (fresh && "empty" in region.dataset && !("empty" in fresh.dataset)) { reload(); return; }
        const log = region.querySelector("[data-log]");
        const newer = fresh && log && fresh.querySelector("#log");
        if (newer) newer.replaceWith(log);
        if (fresh && fresh.innerHTML !== region.innerHTML) {
          if (asked !== true && busy(region)) { stale = true; continue; }
          const open = [...region.querySelectorAll("details")].map((one) => one.open);
          region.replaceChildren(...fresh.childNodes);
          [...region.querySelectorAll("details")].forEach((one, place) => { if (place in open) one.open = open[place]; });
          prepare(region);
        }
      }
    } else if (answer.type === "opaqueredirect") {
      if (typedIn(document.getElementById("main"))) { stale = true; sayStale("your session has ended"); }
      else reload();
    }
    else if (answer.status === 503 && answer.headers.has("retry-after")) {
      stale = true;
      spread = Math.min(4 * spread, 20000);
      sayStale("the server has too much to do");
    } else if (answer.status === 503) { stale = true; sayStale("the store does not answer"); }
    else { stale = true; sayStale("the server answered " + answer.status); }
  } catch { stale = true; } finally { looking = false; looked = Date.now(); }
}

let waiting = 0;
function soon() {
  if (waiting) return;
  const pause = Math.max(PAUSE - (Date.now() - looked), 0) + Math.random() * spread;
  waiting = setTimeout(() => { waiting = 0; look(); }, pause);
}

// One stream for all pages of this browser that are in view: the one that holds the lock listens and tells the others.
// A browser without locks (clear text on another machine) gives each page in view a stream of its own.
const others = "BroadcastChannel" in window ? new BroadcastChannel("horarium") : null;
let stream = null;
let release = null;
let asking = null;
let linked = false;

function hear(word) {
  if (word === "changed") soon();
  else if (word === "live" || word === "here") {
    // Between the making of this page and the first word of the stream something may have changed: look once.
    if (word === "live" || !linked) soon();
    linked = true;
    if (!unanswered) sayLive();
  }
  else if (word === "away") { linked = false; sayStale(""); }
  else if (word === "stopped" && regions().length) { stale = true; sayStale("the store does not answer"); soon(); }
  else if (word === "who" && stream && linked) others.postMessage("here");
}
function tell(word) {
  hear(word);
  if (others) others.postMessage(word);
}
if (others) others.onmessage = (event) => hear(event.data);

function open() {
  stream = new EventSource("/events");
  stream.onopen = () => tell("live");
  stream.onerror = () => {
    tell("away");
    if (stream && stream.readyState === EventSource.CLOSED) setTimeout(() => { if (stream) open(); }, 3000);
  };
  stream.addEventListener("changed", () => tell("changed"));
  stream.addEventListener("away", () => tell("stopped"));
}

function listen() {
  if (!live || stream || asking || document.hidden) return;
  if (!navigator.locks || !others) { open(); return; }
  others.postMessage("who");
  asking = new AbortController();
  navigator.locks.request("horarium events", { signal: asking.signal }, () => {
    asking = null;
    open();
    return new Promise((done) => { release = done; });
  }).catch(() => { /* hidden before its turn came */ });
}

function hush() {
  if (asking) asking.abort();
  asking = null;
  if (stream) stream.close();
  stream = null;
  if (release) release();
  release = null;
}

addEventListener("pagehide", hush);
addEventListener("pageshow", listen);
document.addEventListener("visibilitychange", () => { if (document.hidden) hush(); else { listen(); soon(); } });
setInterval(() => { if (stale || held && !reading() || document.querySelector("[data-again]")) soon(); }, 3000);

// ---- the log of a run that goes on: lines as they are written, in view unless one has scrolled up

async function follow(log) {
  let next = log.dataset.next;
  log.scrollTop = log.scrollHeight;
  while (next !== null) {
    try {
      const answer = await fetch(log.dataset.log + "?after=" + next, { headers: { "HX-Request": "true" }, redirect: "error" });
      if (!answer.ok) throw new Error(answer.status);
      const page = await answer.json();
      const below = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      if (page.lines.length) log.querySelector("[data-empty]")?.remove();
      for (const line of page.lines) {
        const row = document.createElement("div");
        const time = document.createElement("time");
        const text = document.createElement("span");
        time.textContent = line.at;
        text.textContent = line.text;
        if (line.stream === "stderr") text.className = "err";
        row.append(time, text);
        log.append(row);
      }
      while (log.children.length > 5000) log.firstChild.remove();
      if (below) log.scrollTop = log.scrollHeight;
      next = page.next;
    } catch { await new Promise((done) => setTimeout(done, 3000)); }
  }
  document.querySelector("[data-log-state]")?.remove();
  delete log.dataset.log;
}

const growing = document.querySelector("[data-log]");
if (growing) follow(growing);
document.addEventListener("htmx:afterSwap", () => prepare());

// ---- charts: what they say at one place, under the pointer or by the arrow keys

function readOut(box, place) {
  const at = box.dataset.at.split(" ").map(Number);
  const to = Math.min(Math.max(place, 0), at.length - 1);
  let line = box.querySelector(".here");
  if (!line) {
    line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of [["class", "here"], ["y1", "8"], ["y2", "107"]]) line.setAttribute(name, value);
    box.querySelector("svg").append(line);
  }
  line.setAttribute("x1", at[to] + "%");
  line.setAttribute("x2", at[to] + "%");
  box.dataset.place = to;
  box.classList.toggle("to-left", at[to] > 50);
  box.querySelector(".readout").textContent = box.dataset.words.split("\n")[to];
}

function endReading(box) {
  box.querySelector(".here")?.remove();
  box.querySelector(".readout").textContent = "";
  delete box.dataset.place;
}

function openPlace(box) {
  const link = (box.dataset.links || "").split("\n")[box.dataset.place];
  if (link) location.href = link;
}

document.addEventListener("pointermove", (event) => {
  const box = event.target.closest?.("[data-chart]");
  for (const other of document.querySelectorAll("[data-chart][data-place]")) if (other !== box && other !== document.activeElement) endReading(other);
  if (!box || !box.dataset.at) return;
  const area = box.querySelector("svg").getBoundingClientRect();
  const share = 100 * (event.clientX - area.left) / area.width;
  const away = box.dataset.at.split(" ").map((x) => Math.abs(Number(x) - share));
  readOut(box, away.indexOf(Math.min(...away)));
});
document.addEventListener("click", (event) => { const box = event.target.closest("[data-chart]"); if (box) openPlace(box); });
document.addEventListener("focusout", (event) => { const box = event.target.closest("[data-chart]"); if (box) endReading(box); });

function alongChart(box, event) {
  if (!box.dataset.at) return false;
  const last = box.dataset.at.split(" ").length - 1;
  const at = box.dataset.place === undefined ? last + 1 : Number(box.dataset.place);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
  if (event.key === "Enter") openPlace(box);
  else if (event.key === "Escape") endReading(box);
  else if (to !== undefined) readOut(box, to);
  else return false;
  return true;
}

// ---- choosing rows

function chosen(form) { return form.querySelectorAll("input[name=chosen]:checked"); }

function count(form) {
  const bar = form.querySelector("[data-bulk-bar]");
  if (!bar) return;
  const many = chosen(form).length;
  bar.hidden = many === 0;
  bar.querySelector("[data-count]").textContent = many + " chosen";
  for (const button of bar.querySelectorAll("[data-verb]")) button.textContent = button.dataset.verb + " " + many;
  for (const row of form.querySelectorAll("tr[data-row]")) row.classList.toggle("is-chosen", !!row.querySelector("input[name=chosen]:checked"));
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-bulk]");
  if (!form) return;
  if (event.target.matches("[data-all]")) for (const box of form.querySelectorAll("input[name=chosen]")) box.checked = event.target.checked;
  count(form);
});

document.addEventListener("click", (event) => {
  const none = event.target.closest("[data-none]");
  if (none) {
    const form = none.closest("form");
    for (const box of form.querySelectorAll("input:checked")) box.checked = false;
    count(form);
  }
  const copy = event.target.closest("[data-copy]");
  if (copy && navigator.clipboard) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => {
      const before = copy.textContent;
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = before; }, 1500);
    });
  }
});

// ---- the form of a job: only the fields of the chosen target

function fitTarget() {
  const picked = document.querySelector("input[name=target]:checked");
  if (!picked) return;
  for (const part of document.querySelectorAll("[data-target]")) part.hidden = part.dataset.target !== picked.value;
  for (const part of document.querySelectorAll("[data-not-target]")) part.hidden = part.dataset.notTarget === picked.value;
  const kind = document.querySelector("input[name=kind]:checked");
  for (const part of document.querySelectorAll("[data-kind]")) part.hidden = !kind || part.dataset.kind !== kind.value;
}

document.addEventListener("change", (event) => { if (["target", "kind"].includes(event.target.name)) fitTarget(); });

// ---- the form of a job: nothing typed is lost by an error, a sign-in or a restart

let form = document.querySelector("form[data-job-form]");
const draftKey = "draft " + location.pathname;
const UNSAVED = ["csrf", "was", "editing"];

function fieldsOf(one) {
  return [...new FormData(one)].filter(([name]) => !UNSAVED.includes(name));
}

function keepDraft() {
  if (form) try { sessionStorage.setItem(draftKey, JSON.stringify(fieldsOf(form))); } catch { /* no room: the page has it still */ }
}

function putDraft() {
  const kept = sessionStorage.getItem(draftKey);
  if (!form || !kept || kept === JSON.stringify(fieldsOf(form))) return;
  for (const [name, value] of JSON.parse(kept)) {
    for (const field of form.querySelectorAll("[name=" + CSS.escape(name) + "]")) {
      if (field.type === "radio") field.checked = field.value === value;
      else if (field.type !== "submit") field.value = value;
    }
  }
  const note = document.getElementById("draft");
  note.querySelector("span").textContent = "This is the text that you had typed and not saved.";
  note.hidden = false;
  note.querySelector("button").onclick = () => { sessionStorage.removeItem(draftKey); location.reload(); };
  fitTarget();
  // htmx listens from the end of the page's making on: the preview is that of this text.
  document.addEventListener("DOMContentLoaded", () => form.dispatchEvent(new Event("change", { bubbles: true })));
}

function askAgain() {
  const preview = document.getElementById("preview");
  preview.classList.add("unasked");
  preview.querySelector("[data-unasked]").hidden = false;
  for (const copy of preview.querySelectorAll("[data-copy]")) copy.disabled = true;
  clearTimeout(askAgain.later);
  askAgain.later = setTimeout(() => form && form.dispatchEvent(new Event("change", { bubbles: true })), 3000);
}

function notSaved(text, link) {
  const line = document.getElementById("not-saved");
  line.textContent = text + " Your text is kept. ";
  if (link) {
    const to = document.createElement("a");
    to.href = "/sign-in?next=" + encodeURIComponent(location.pathname);
    to.textContent = "Sign in";
    line.append(to);
  }
  line.hidden = false;
  line.scrollIntoView({ block: "nearest" });
}

// A form is bound to a session; one that was made before a new sign-in gets that of the new session.
async function renewed() {
  const answer = await fetch(location.pathname, { redirect: "error" });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("form[data-job-form] [name=csrf]");
  if (!fresh || fresh.value === form.elements.csrf.value) return false;
  form.elements.csrf.value = fresh.value;
  return true;
}

async function send(button) {
  keepDraft();
  const post = () => fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form, button)), headers: { "X-Form": "1" } });
  try {
    let answer = await post();
    if (answer.status === 403 && await renewed()) answer = await post();
    if (answer.headers.has("x-to")) {
      sessionStorage.removeItem(draftKey);
      form = null;
      location.href = answer.headers.get("x-to");
    } else if (answer.status === 401) notSaved("Your session has ended.", true);
    else if (answer.status === 503) notSaved("It was not saved: the store does not answer. Try again in a moment.");
    else {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.querySelector("form[data-job-form]")) { notSaved("It was not saved: " + (page.querySelector(".broken p")?.textContent || answer.status)); return; }
      document.getElementById("main").replaceChildren(...page.getElementById("main").childNodes);
      form = document.querySelector("form[data-job-form]");
      htmx.process(form);
      prepare();
      (form.querySelector("[aria-invalid=true]") || document.querySelector("main .error:not([hidden])"))?.focus();
    }
  } catch { notSaved("It was not saved: the server does not answer. Try again in a moment."); }
}

document.addEventListener("submit", (event) => {
  if (event.target !== form) return;
  event.preventDefault();
  send(event.submitter);
});
document.addEventListener("click", (event) => { if (event.target.closest("[data-discard]")) { sessionStorage.removeItem(draftKey); form = null; } });
document.addEventListener("input", (event) => { if (form && form.contains(event.target)) keepDraft(); });
document.addEventListener("htmx:sendError", askAgain);
document.addEventListener("htmx:responseError", (event) => { askAgain(); if (event.detail.xhr.status === 401) notSaved("Your session has ended.", true); });
document.addEventListener("htmx:afterSwap", () => { document.getElementById("preview")?.classList.remove("unasked"); sayRule(); });

// A screen reader hears the rule, once: the place that is heard stays while the preview is put in anew.
function sayRule() {
  const heard = document.getElementById("rule-said");
  const text = document.querySelector("#preview [data-said]")?.dataset.said;
  if (heard && text !== undefined && heard.textContent !== text) heard.textContent = text;
}

// ---- every other form with text: it goes only where it arrives, so that no error page takes the place of what was typed

const isTyped = (field) => field.matches("textarea, input:not([type=hidden], [type=radio], [type=checkbox])") && field.value !== "" && field.value !== field.defaultValue;
const typedIn = (place) => [...place.querySelectorAll("form[method=post] :is(input, textarea)")].some(isTyped);

function stays(one, text, link) {
  const line = one.querySelector("[data-stays]") || one.appendChild(document.createElement("p"));
  line.dataset.stays = "";
  line.className = "error";
  line.setAttribute("role", "alert");
  line.textContent = text + " Your text is kept. ";
  if (link) line.append(Object.assign(document.createElement("a"), { href: "/sign-in", target: "_blank", className: "link", textContent: "Sign in, and try again here" }));
}

document.addEventListener("submit", async (event) => {
  const one = event.target;
  if (one === form || one.method !== "post" || ![...one.elements].some(isTyped)) return;
  event.preventDefault();
  if ("busy" in one.dataset) return;
  one.dataset.busy = "";
  await sendTyped(one, event.submitter);
  delete one.dataset.busy;
});

async function sendTyped(one, button) {
  try {
    const answer = await fetch(location.href, { headers: { "HX-Request": "true", "X-Form": "1" }, redirect: "manual" });
    if (answer.status === 401) { stays(one, "Your session has ended.", true); return; }
    if (answer.status === 503) { stays(one, "Not sent: the store does not answer. Try again in a moment."); return; }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[name=csrf]");
    if (fresh && one.elements.csrf) one.elements.csrf.value = fresh.value;
  } catch { stays(one, "Not sent: the server does not answer. Try again in a moment."); return; }
  try {
    const to = button?.hasAttribute("formaction") ? button.formAction : one.getAttribute("action");
    const answer = await fetch(to, { method: "POST", body: new URLSearchParams(new FormData(one, button)), headers: { "X-Form": "1" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const refused = page.querySelector(".broken p")?.textContent;
    if (answer.headers.has("x-to") || answer.redirected) location.href = answer.headers.get("x-to") || answer.url;
    else if (refused) stays(one, "Not done: " + refused.replace(/\.?$/, "."));
    else shown(page);
  } catch { stays(one, "No answer came: look whether it was done before you send it again."); }
}

// The page that answers a form, in the place of this one.
function shown(page) {
  document.getElementById("main").replaceChildren(...page.getElementById("main").childNodes);
  document.title = page.title;
  htmx.process(document.getElementById("main"));
  prepare();
  (document.querySelector("main :is([aria-invalid=true], [autofocus])") || document.getElementById("main")).focus();
}

// ---- the palette: the list of the search page, while one types

const palette = document.getElementById("palette");
const paletteText = document.getElementById("palette-text");
let asked = 0;

async function fillPalette() {
  const number = ++asked;
  try {
    const answer = await fetch("/search?q=" + encodeURIComponent(paletteText.value), { headers: { "HX-Request": "true" } });
    if (number !== asked || !answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("found");
    const list = document.getElementById("palette-list");
    const at = [...list.querySelectorAll("a")].indexOf(document.activeElement);
    if (found) list.replaceChildren(...found.childNodes);
    else {
      const to = document.createElement("a");
      to.href = new URL(answer.url).pathname;
      to.textContent = page.querySelector("h1")?.textContent || to.href;
      list.replaceChildren(to);
    }
    for (const one of list.querySelectorAll("[id]")) { one.id = "p-" + one.id; }
    for (const one of list.querySelectorAll("[aria-labelledby]")) one.setAttribute("aria-labelledby", "p-" + one.getAttribute("aria-labelledby"));
    if (at >= 0) ([...list.querySelectorAll("a")].slice(0, at + 1).pop() || paletteText).focus();
  } catch { /* the server is away: the line at the bottom says so */ }
}

function openPalette() {
  palette.showPopover();
  paletteText.select();
  paletteText.focus();
  fillPalette();
}

if (palette) {
  document.getElementById("find")?.addEventListener("click", (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); openPalette(); } });
  paletteText.addEventListener("input", () => { clearTimeout(fillPalette.later); fillPalette.later = setTimeout(fillPalette, 120); });
  palette.addEventListener("submit", (event) => {
    const first = document.querySelector("#palette-list a");
    if (first && paletteText.value) { event.preventDefault(); clearTimeout(fillPalette.later); fillPalette().then(() => document.querySelector("#palette-list a")?.click()); }
  });
  palette.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const stops = [paletteText, ...document.querySelectorAll("#palette-list a")];
    stops[Math.min(Math.max(stops.indexOf(document.activeElement) + step, 0), stops.length - 1)].focus();
  });
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    if (palette.matches(":popover-open")) palette.hidePopover(); else openPalette();
  });
}

// ---- keys

const letters = document.getElementById("letters");
if (letters) {
  letters.checked = localStorage.getItem("letters") !== "off";
  letters.addEventListener("change", () => localStorage.setItem("letters", letters.checked ? "on" : "off"));
}
let going = 0;

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  const link = row.querySelector("[data-open], a");
  if (link) link.focus();
}

function along(strip, event) {
  const marks = [...strip.querySelectorAll(".mark")];
  const at = marks.indexOf(document.activeElement);
  const line = [...strip.children].findIndex((one) => one.matches("[data-nowline]"));
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: marks.length - 1, n: line < 0 ? undefined : Math.max(line - 1, 0) }[event.key];
  if (to === undefined || !marks[to]) return false;
  marks.forEach((mark, place) => { mark.tabIndex = place === to ? 0 : -1; });
  marks[to].focus();
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const strip = event.target.closest("[data-strip]");
  if (strip && along(strip, event)) { event.preventDefault(); return; }
  if (event.target.matches("[data-chart]") && alongChart(event.target, event)) { event.preventDefault(); return; }
  // The focus leaves a field that was hidden only with the next frame.
  if (event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select") && event.target.checkVisibility()) {
    if (event.key === "Escape" && event.target.type === "search") event.target.value = "";
    return;
  }
  if (letters && !letters.checked) return;
  const place = going && Date.now() - going < 1500 && document.querySelector("#places [data-letter='" + CSS.escape(event.key) + "']");
  going = 0;
  if (place) { location.href = place.href; return; }
  const to = document.querySelector("[data-key='" + CSS.escape(event.key) + "']");
  if (to && !event.target.closest("[data-strip], [data-chart]")) { event.preventDefault(); to.click(); return; }
  const search = document.querySelector("[data-search]");
  if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
  else if (event.key === "/" && palette) { event.preventDefault(); openPalette(); }
  else if (event.key === "?") document.getElementById("keys").showPopover();
  else if (event.key === "g") going = Date.now();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "x") {
    const row = document.activeElement.closest("tr[data-row]");
    const box = row && row.querySelector("input[name=chosen]");
    if (box) box.click();
  }
});

// ---- what passes

const said = document.querySelector("#said .toast");
if (said) {
  document.getElementById("main").focus({ preventScroll: true }); // the next tab stop is on the page, not in its frame
  const leave = () => { if (said.matches(":hover, :focus-within")) setTimeout(leave, 2000); else said.remove(); };
  setTimeout(leave, 8000);
}

function prepare() {
  fitTarget();
  write();
  tick();
}

prepare();
putDraft();
listen();
