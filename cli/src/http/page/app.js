// The page: its header, its views, and what is common to them.

import { choose, chosen, get, keep, onToken } from "./api.js";
import { details, show, toast } from "./dialog.js";
import { fill, h, say } from "./dom.js";
import { clock, count, small, span } from "./format.js";
import { bind } from "./keys.js";
import { changed, follow, isPaused, isThis, onChange, pause, restart, state } from "./live.js";
import * as errors from "./view_errors.js";
import * as fleet from "./view_fleet.js";
import * as hub from "./view_hub.js";
import * as log from "./view_log.js";
import * as messages from "./view_messages.js";
import * as schedule from "./view_schedule.js";

const VIEWS = { fleet, messages, errors, schedule, hub, log };
const THEME = "artel-theme";
const main = document.getElementById("main");

let name = "fleet";
let params = new URLSearchParams();
let opened = null;

// Where the page is: `#/errors?q=timeout`. So a view can be kept as a bookmark.
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [Object.hasOwn(VIEWS, path) ? path : "fleet", new URLSearchParams(query ?? "")];
}

export function go(view, values = {}) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
  location.hash = query ? `#/${view}?${query}` : `#/${view}`;
}

function open() {
  const before = name;
  [name, params] = place();
  const view = VIEWS[name];
  if (opened !== name) {
    VIEWS[before].close?.();
    opened = name;
    main.replaceChildren();
    window.scrollTo(0, 0);
  }
  document.title = `${view.title} · ${chosen() ?? state.about?.fleets[0] ?? "Artel"}`;
  view.open?.(params);
  draw();
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(THEME, root.dataset.theme);
}

const CONNECTIONS = {
  live: ["ok", "live"],
  paused: ["warn", "paused"],
  connecting: ["bad", "reconnecting"],
};

function header() {
  const { about, status } = state;
  const stored = status?.errors.stored ?? 0;
  const names = about?.fleets ?? [];
  fill(document.getElementById("fleet"), names.length > 1
    ? [h("select", { "aria-label": "Fleet", onchange: (event) => {
        choose(event.target.value);
        VIEWS[name].close?.();
        opened = null;
        restart();
        open();
      } }, names.map((one) => h("option", { value: one, selected: isThis(one) }, one)))]
    : [h("b", {}, names[0] ?? "Artel")]);
  fill(document.getElementById("nav"), Object.entries(VIEWS).map(([key, view]) =>
    h("a", { href: `#/${key}`, key, "aria-current": key === name ? "page" : null }, view.title,
      key === "errors" && stored > 0 ? h("span", { class: "count" }, count(stored)) : null)));
  const [kind, word] = state.trouble ? ["bad", "no Redis"] : CONNECTIONS[state.connection];
  fill(document.getElementById("right"), [
    status ? h("span", { class: "mid" }, `${status.redis.server} ${status.redis.version} · ${small(status.redis.rtt_ms)} ms`) : null,
    about && !about.may_change ? h("span", { class: "pill plain" }, "read-only") : null,
    h("button", { class: `pill ${kind}`, type: "button", onclick: () => pause(), title: isPaused() ? "go on" : "pause",
      "aria-label": `${word}: ${isPaused() ? "go on" : "pause"}` }, h("i", { class: "dot" }), word),
    h("button", { class: "small", type: "button", onclick: theme, "aria-label": "light or dark", title: "light or dark" }, "◐"),
    h("button", { class: "small", type: "button", onclick: help, "aria-label": "keys", title: "keys" }, "?"),
  ]);
  fill(document.getElementById("foot"), status
    ? [`as of ${clock(status.time_ms)} · version ${about?.version ?? ""} · updates pause in a hidden tab · press `,
      h("kbd", {}, "?"), " for the keys"]
    : ["…"]);
}

const TROUBLES = {
  NoMember: "No member is here: nobody generates, nobody works.",
};

function banners() {
  const { status, trouble } = state;
  const all = [];
  if (trouble) all.push(["bad", `${trouble}. What is shown is ${span(Date.now() - state.received)} old.`]);
  if (!status) return all;
  const here = status.members.filter((member) => member.role !== "overdue");
  if (here.length === 0) all.push(["bad", TROUBLES.NoMember]);
  else if (!status.generator && status.leaderless_ms > status.lease_ms) {
    all.push(["bad", `Nobody has led for ${span(status.leaderless_ms)}.`]);
  } else if (status.messages.waiting > 0 && !here.some((member) => member.works)) {
    all.push(["bad", "Messages wait and nobody works."]);
  }
  if (status.messages.balance !== 0) {
    all.push(["bad", `The books do not balance: the difference is ${status.messages.balance}.`]);
  }
  if (status.exhausted.length > 0) all.push(["bad", `Cannot grow any more: ${status.exhausted.join(", ")}.`]);
  if (status.paused.length > 0) all.push(["warn", `Paused: ${status.paused.join(", ")}.`]);
  return all;
}

let leader = null;

function draw() {
  header();
  const holder = state.status?.generator?.label;
  if (holder && leader && holder !== leader) say(`The generator is ${holder} now.`);
  if (holder) leader = holder;
  const bars = banners().map(([kind, text], at) => h("div", { class: `banner ${kind}`, key: `b${at}`, role: "alert" }, text));
  fill(main, [bars, VIEWS[name].render(params)]);
}

const KEYS = [
  ["?", "these keys"], ["f", "fleet"], ["m", "members"], ["w", "messages that wait"], ["e", "errors"], ["s", "schedule"],
  ["h", "hub"], ["l", "log"], ["/", "search"], ["j k", "next, previous row"], ["x", "select a row"], ["Enter", "open a row"],
  ["r", "put the selected errors back to work"], ["n", "send a message (in Messages)"], ["t", "the numbers behind the lines"], ["p", "pause, go on"],
  ["d", "light or dark"], ["Esc", "close"],
];

function help() {
  details("Keys", h("dl", {}, KEYS.map(([keys, what]) => [
    h("dt", {}, keys.split(" ").map((key) => [h("kbd", {}, key), " "])), h("dd", {}, what)])));
}

bind({
  "?": help,
  f: () => go("fleet"),
  m: () => { go("fleet"); requestAnimationFrame(() => document.querySelector("#members tbody tr")?.focus()); },
  w: () => go("messages", { state: "waiting" }),
  e: () => go("errors"),
  s: () => go("schedule"),
  h: () => go("hub"),
  l: () => go("log"),
  t: () => { go("fleet"); fleet.numbers(); },
  p: () => pause(),
  d: () => { theme(); draw(); },
}, () => VIEWS[name].keys ?? {});

// Asks for the token, once at a time.
let asking = null;
onToken(() => {
  asking ??= (async () => {
    const field = h("input", { type: "password", id: "token", autocomplete: "off" });
    const yes = await show("Token", [
      h("p", {}, "This port asks for a token: that of an operator, or one for reading."),
      h("label", { for: "token" }, "Token"), field,
    ], [["Open", "go", () => field.value.trim() || undefined]], { focus: field });
    asking = null;
    if (!yes) return false;
    keep(yes);
    return true;
  })();
  return asking;
});

async function start() {
  const kept = localStorage.getItem(THEME);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  onChange(draw);
  addEventListener("hashchange", open);
  open();
  let wait = 500;
  while (!state.about) {
    try {
      state.about = await get("about");
    } catch (error) {
      if (error.status === 403 || error.status === 421) toast(error.message, true);
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(wait * 2, 5000);
    }
  }
  open();
  follow();
  changed();
}

start();
