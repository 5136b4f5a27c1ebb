// The hubs inside the members: who listens, how far behind, and what fails.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, rate } from "./format.js";
import { changed, state } from "./live.js";

export const title = "Hub";

const EVERY = 2000;

let hub = null;
let before = null;
let rates = new Map();
let timer = null;
let asked = 0;

async function load() {
  const mine = ++asked;
  try {
    const answer = (await get("hub")).hub;
    if (mine !== asked) return;
    const at = Date.now();
    if (answer && before) {
      const seconds = (at - before.at) / 1000;
      const known = new Map(before.hub.topics.map((topic) => [topic.key, topic.published]));
      rates = new Map(answer.topics.map((topic) => [topic.key, Math.max(0, (topic.published - (known.get(topic.key) ?? topic.published)) / seconds)]));
    }
    before = answer ? { at, hub: answer } : null;
    hub = answer ?? false;
  } catch {
    // The next one may be answered.
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
  hub = before = null;
}

const STATES = { running: "ok", pausing: "warn", stuck: "bad", draining: "warn", stopped: "plain", failed: "bad" };

function table(name, id, heads, rows) {
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": id }, h("table", { "aria-label": name }, h("thead", {}, h("tr", {}, heads.map(([head, kind]) => h("th", { scope: "col", class: kind }, head)))), h("tbody", {}, rows)));
}

function here() {
  if (hub === null) return [h("p", { class: "none wide", key: "wait" }, "Loading…")];
  if (hub === false) return [h("section", { class: "wide", key: "none" }, h("h2", {}, "This process"), h("p", { class: "none" }, "This process is no member, so it has no hub. What members report is below."))];
  return [
    h("section", { class: "wide", key: "subscribers", "aria-labelledby": "s" }, h("h2", { id: "s" }, "Subscribers of this process"),
      hub.subscribers.length === 0 ? h("p", { class: "none" }, "There are none.") :
      table("Subscribers", "s", [["Name"], ["State"], ["Processed", "n"], ["Lag", "n"], ["Errors", "n"], ["Restarts", "n hide"], ["Dropped", "n"], ["p99", "n hide"]],
        hub.subscribers.map((one) => h("tr", { key: one.name }, h("td", {}, h("b", {}, one.name)), h("td", {}, h("span", { class: `pill ${STATES[one.state] ?? "plain"}` }, one.state)),
          h("td", { class: "n" }, count(one.processed)), h("td", { class: "n" }, count(one.lag)), h("td", { class: "n" }, count(one.errors)), h("td", { class: "n hide" }, count(one.restarts)),
          h("td", { class: "n" }, count(one.dropped)), h("td", { class: "n hide" }, `${rate(one.times.p99_ns / 1000)} µs`))))),
    h("section", { class: "wide", key: "topics", "aria-labelledby": "o" }, h("h2", { id: "o" }, "Topics of this process"),
      hub.topics.length === 0 ? h("p", { class: "none" }, "There are none.") :
      table("Topics", "o", [["Topic"], ["Published", "n"], ["per second", "n"], ["Subscribers", "n"], ["Dropped", "n hide"]],
        hub.topics.map((topic) => h("tr", { key: topic.key }, h("td", { class: "id" }, topic.key), h("td", { class: "n" }, count(topic.published)), h("td", { class: "n" }, rate(rates.get(topic.key))),
          h("td", { class: "n" }, count(topic.subscribers)), h("td", { class: "n hide" }, count(topic.dropped)))))),
  ];
}

function everywhere() {
  const all = (state.stats?.members ?? []).flatMap((member) => (member.hub ?? []).map((one) => ({ member, one })));
  return h("section", { class: "wide", key: "all", "aria-labelledby": "a" }, h("h2", { id: "a" }, "Subscribers of all members"),
    all.length === 0 ? h("p", { class: "none" }, "No member reports any.") :
    table("Subscribers of all members", "a", [["Member"], ["Name"], ["Processed", "n"], ["Lag", "n"], ["Errors", "n"], ["Restarts", "n hide"], ["Dropped", "n"]],
      all.map(({ member, one }) => h("tr", { key: `${member.id} ${one.name}` }, h("td", {}, h("b", {}, member.label)), h("td", {}, one.name), h("td", { class: "n" }, count(one.processed)),
        h("td", { class: "n" }, count(one.lag)), h("td", { class: "n" }, count(one.errors)), h("td", { class: "n hide" }, count(one.restarts)), h("td", { class: "n" }, count(one.dropped))))));
}

export function render() {
  return [h("h1", { key: "h1" }, "Hub"), here(), everywhere()];
}
