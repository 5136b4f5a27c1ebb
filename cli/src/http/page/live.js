// What changes, as it happens: one stream for this tab. It pauses in a hidden tab and on request, and goes on where it was.

import { address, ask, chosen, get, headers } from "./api.js";

const LOG_MAX = 500;
const TRENDS_EVERY = 5000;
const STATS_EVERY = 10000;
const PAUSE = [500, 5000];

export const state = {
  about: null,
  status: null,
  rates: null,
  received: 0, // when the status came, by the clock of this browser
  trends: null,
  stats: null,
  log: [], // the newest last
  elections: [], // the newest last
  connection: "connecting", // live, paused, away
  trouble: null,
};

const listeners = new Set();
let drawn = false;
let paused = false;
let stop = null;
let last = null;
let before = null;

export const onChange = (act) => listeners.add(act);

// Draws once for all that has changed.
export function changed() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    for (const act of listeners) act();
  });
}

export const isPaused = () => paused;

export function pause(wish = !paused) {
  paused = wish;
  follow();
}

const LOG_KINDS_OF_LEADERS = ["elected"];

function note(entry) {
  state.log.push(entry);
  if (state.log.length > LOG_MAX) state.log.splice(0, state.log.length - LOG_MAX);
  if (LOG_KINDS_OF_LEADERS.includes(entry.kind)) {
    state.elections.push(entry);
    if (state.elections.length > 12) state.elections.shift();
  }
}

function renew(status) {
  const seconds = before ? (status.time_ms - before.time_ms) / 1000 : 0;
  // A short step says little about a rate; a clock that was set, nothing.
  if (!before || seconds < 0 || seconds > 60) {
    before = status;
  } else if (seconds >= 0.9) {
    const by = (name) => Math.max(0, (status.messages[name] - before.messages[name]) / seconds);
    state.rates = { generated: by("generated"), sent: by("sent"), done: by("done"), failed: by("failed") };
    before = status;
  }
  state.status = status;
  state.received = Date.now();
  state.trouble = null;
}

function told(kind, data, id) {
  let document;
  try { document = JSON.parse(data); } catch { return; }
  if (kind === "log") {
    last = id;
    note(document);
  } else if (kind === "status") {
    renew(document);
  } else if (kind === "trouble") {
    state.trouble = document.error;
  }
  changed();
}

// Reads events until the stream ends.
async function read(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done || signal.aborted) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const event = { kind: "message", data: "", id: null };
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(": ");
        const text = line.slice(colon + 2);
        if (line.startsWith("event: ")) event.kind = text;
        else if (line.startsWith("data: ")) event.data += text;
        else if (line.startsWith("id: ")) event.id = text;
      }
      rest = rest.slice(end + 2);
      if (event.data) told(event.kind, event.data, event.id);
    }
  }
}

// What was before the stream: the last entries, the elections among them.
async function begin(signal) {
  const led = await get("log", { kind: "elected", limit: 8 }, signal);
  const page = await get("log", { limit: 100 }, signal);
  if (signal.aborted) return;
  state.log = page.entries.reverse();
  const newest = new Set(led.entries.map((entry) => entry.id));
  const since = state.log.filter((entry) => entry.kind === "elected" && !newest.has(entry.id) && led.entries.length > 0 && Number(entry.id.split("-")[0]) > Number(led.entries[0].id.split("-")[0]));
  state.elections = [...led.entries.reverse(), ...since];
  last = state.log.at(-1)?.id ?? "0-0";
}

async function listen(signal) {
  let wait = PAUSE[0];
  while (!signal.aborted) {
    try {
      if (last === null) await begin(signal);
      if (signal.aborted) return;
      const more = headers(last ? { "Last-Event-ID": last } : {});
      const answer = await fetch(address("stream"), { headers: more, signal, credentials: "omit", cache: "no-store" });
      if (answer.status === 401) await ask("about", { signal });
      if (!answer.ok || !answer.body) throw new Error(`the answer was ${answer.status}`);
      state.connection = "live";
      wait = PAUSE[0];
      changed();
      await read(answer.body, signal);
    } catch {
      // It is tried again, whatever it was.
    }
    if (signal.aborted) return;
    state.connection = "connecting";
    changed();
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, PAUSE[1]);
  }
}

// Begins, pauses or goes on, as the tab and the person want it.
export function follow() {
  const wants = !paused && !document.hidden;
  if (wants && !stop) {
    stop = new AbortController();
    before = null;
    listen(stop.signal);
    for (const [name, path, every] of [["trends", "trends", TRENDS_EVERY], ["stats", "stats", STATS_EVERY]]) {
      again(name, path, every, stop.signal);
    }
  } else if (!wants && stop) {
    stop.abort();
    stop = null;
    state.connection = "paused";
    changed();
  }
}

async function again(name, path, every, signal) {
  while (!signal.aborted) {
    try {
      const answer = await get(path, {}, signal);
      if (signal.aborted) return;
      state[name] = answer;
      changed();
    } catch {
      // The next one may be answered.
    }
    await new Promise((done) => setTimeout(done, every));
  }
}

// Another fleet: nothing of this one is true for it.
export function restart() {
  if (stop) stop.abort();
  stop = null;
  last = null;
  before = null;
  Object.assign(state, { status: null, rates: null, trends: null, stats: null, log: [], elections: [], trouble: null });
  follow();
}

document.addEventListener("visibilitychange", follow);

// The time of Redis, as far as this browser knows: its own clock may be wrong.
export function now() {
  const { status, received } = state;
  return status ? status.time_ms + (Date.now() - received) : Date.now();
}

export const mayChange = () => state.about?.may_change === true;
export const isThis = (name) => (chosen() ?? state.about?.fleets[0]) === name;
