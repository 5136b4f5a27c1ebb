// What comes again and again, and what the whole fleet waits for: periodic entries, events, locks.

import { get, post, within } from "./api.js";
import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import { count, payload, point, span } from "./format.js";
import { changed, mayChange, now } from "./live.js";

export const title = "Schedule";

const EVERY = 3000;

let entries = null;
let events = null;
let locks = null;
let problem = null;
let timer = null;
let asked = 0;

async function load() {
  const mine = ++asked;
  try {
    const [a, b, c] = await Promise.all([get("crons"), get("events"), get("locks")]);
    if (mine !== asked) return;
    [entries, events, locks, problem] = [a.entries, b.events, c.locks, null];
  } catch (error) {
    problem = error.message;
  }
  changed();
}

export function open() {
  load();
  timer ??= setInterval(() => { if (!document.hidden) load(); }, EVERY);
}

export function close() {
  clearInterval(timer);
  timer = null;
  asked++;
  entries = events = locks = null;
}

const act = (path, text) => async () => {
  await post(path);
  load();
  return text;
};

function next(entry) {
  if (entry.paused) return h("span", { class: "pill warn" }, "paused");
  if (entry.next_ms === null) return "never";
  return `${point(entry.next_ms, now())} · ${entry.next_ms > now() ? `in ${span(entry.next_ms - now())}` : "now"}`;
}

function periodic() {
  return h("section", { class: "wide", key: "crons", "aria-labelledby": "c" }, h("h2", { id: "c" }, "Periodic entries"),
    !entries ? h("p", { class: "none" }, "Loading…") : entries.length === 0 ? h("p", { class: "none" }, "There are none. ", h("span", { class: "id" }, "artel cron set NAME '0 2 * * *' MESSAGE"), " adds one.")
      : h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "c" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Entry"), h("th", { scope: "col" }, "Times"),
        h("th", { scope: "col" }, "Next"), h("th", { scope: "col", class: "hide" }, "Last"), h("th", { scope: "col", class: "hide" }, "Kind"), h("th", { scope: "col", class: "hide" }, "Payload"),
        h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))),
      h("tbody", {}, entries.map((entry) => h("tr", { key: entry.entry }, h("td", {}, h("b", {}, entry.entry)),
        h("td", { class: "id" }, entry.spec, entry.spec.startsWith("every ") ? "" : ` ${entry.tz}`), h("td", {}, next(entry)),
        h("td", { class: "hide" }, entry.fired_ms === null ? "never" : `${span(Math.max(0, now() - entry.fired_ms))} ago`),
        h("td", { class: "hide" }, entry.kind ?? ""), h("td", { class: "id cut hide" }, payload(entry)),
        h("td", { class: "n" }, mayChange() ? [
          h("button", { type: "button", class: "small", key: "run", "aria-label": `run ${entry.entry}`, onclick: () => confirm(`Run ${entry.entry} now?`, "Its message is sent once, now. Its times stay as they are.", "Run now",
            act(within("crons/*/run", entry.entry), `${entry.entry} was sent`)) }, "Run…"), " ",
          entry.paused
            ? h("button", { type: "button", class: "small", key: "resume", "aria-label": `resume ${entry.entry}`, onclick: () => confirm(`Resume ${entry.entry}?`, "It fires again from its next time on.", "Resume", act(within("crons/*/resume", entry.entry), `${entry.entry} goes on`)) }, "Resume…")
            : h("button", { type: "button", class: "small", key: "pause", "aria-label": `pause ${entry.entry}`, onclick: () => confirm(`Pause ${entry.entry}?`, "It does not fire. Times that pass meanwhile are not made up for.", "Pause", act(within("crons/*/pause", entry.entry), `${entry.entry} is paused`)) }, "Pause…")] : null)))))));
}

function flags() {
  return h("section", { key: "events", "aria-labelledby": "e" }, h("h2", { id: "e" }, "Events"),
    !events ? h("p", { class: "none" }, "Loading…") : events.length === 0 ? h("p", { class: "none" }, "There are none.")
      : h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "e" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Event"), h("th", { scope: "col" }, "State"), h("th", { scope: "col", class: "n hide" }, "Generation"), h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))),
        h("tbody", {}, events.map((event) => h("tr", { key: event.event }, h("td", {}, h("b", {}, event.event)),
          h("td", {}, event.set ? h("span", { class: "pill ok" }, event.clears_in_ms === null ? "set" : `set, for ${span(event.clears_in_ms)} more`) : "not set"),
          h("td", { class: "n hide id" }, event.generation),
          h("td", { class: "n" }, mayChange() ? (event.set
            ? h("button", { type: "button", class: "small", key: "clear", "aria-label": `clear ${event.event}`, onclick: () => confirm(`Clear ${event.event}?`, "Those who wait from now on wait until it is set again.", "Clear", act(within("events/*/clear", event.event), `${event.event} is cleared`)) }, "Clear…")
            : h("button", { type: "button", class: "small", key: "set", "aria-label": `set ${event.event}`, onclick: () => confirm(`Set ${event.event}?`, "Everybody who waits for it goes on.", "Set", act(within("events/*/set", event.event), `${event.event} is set`)) }, "Set…")) : null)))))));
}

function held() {
  return h("section", { key: "locks", "aria-labelledby": "k" }, h("h2", { id: "k" }, "Locks"),
    !locks ? h("p", { class: "none" }, "Loading…") : locks.length === 0 ? h("p", { class: "none" }, "None is held.")
      : h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "k" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Lock"), h("th", { scope: "col" }, "Held by"), h("th", { scope: "col", class: "n" }, "For"), h("th", { scope: "col", class: "n" }, "Waiting"), h("th", { scope: "col", class: "hide" }, "Token"))),
        h("tbody", {}, locks.map((lock) => h("tr", { key: lock.name }, h("td", {}, h("b", {}, lock.name)), h("td", {}, lock.label || `${lock.host}:${lock.pid}`),
          h("td", { class: "n" }, span(lock.held_ms)), h("td", { class: "n" }, count(lock.waiting)), h("td", { class: "id hide" }, String(lock.token))))))));
}

export function render() {
  return [h("h1", { key: "h1" }, "Schedule", h("span", { class: "more" }, h("a", { href: "#/messages?state=scheduled" }, "messages that wait for a time"))),
    problem ? h("p", { class: "problem wide", key: "problem", role: "alert" }, problem) : null, periodic(), flags(), held()];
}

