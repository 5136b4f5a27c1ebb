// Failed messages: found among many, with their reasons, and what can be done with them.

import { chosen, download, get, post, save, within } from "./api.js";
import { confirm, facts, perform, show, toast } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, count, payload, point } from "./format.js";
import { changed, mayChange, now, state } from "./live.js";
import { go } from "./app.js";

export const title = "Errors";

const LIMIT = 50;
const CAUSES = ["handler", "attempts", "decode", "timeout", "unread", "kind", "retries", "expired"];
const SINCE = [["", "any time"], ["600000", "10 minutes"], ["3600000", "an hour"], ["86400000", "a day"]];

let at = {};
let list = { rows: [], next: null, loading: false, problem: null, looked: 0 };
let selected = new Set();
let asked = 0;
let stored = null;

function wishes(params) {
  const text = (name) => params.get(name) ?? "";
  return { q: text("q"), kind: text("kind"), cause: text("cause"), member: text("member"), since: text("since") };
}

function filter(of = at) {
  const { since, ...rest } = of;
  const known = Object.fromEntries(Object.entries(rest).filter(([, value]) => value));
  if (since) known.since_ms = Math.round(now() - Number(since));
  return known;
}

const filters = () => Object.keys(filter()).length > 0;

async function load(more = false) {
  const mine = ++asked;
  list = { ...list, loading: true, problem: null };
  changed();
  try {
    const page = await get("errors", { ...filter(), limit: LIMIT, cursor: more ? list.next : null });
    if (mine !== asked) return;
    list = { rows: more ? [...list.rows, ...page.errors] : page.errors, next: page.cursor, loading: false, problem: null, looked: page.looked };
    const there = new Set(list.rows.map((row) => row.position));
    selected = new Set([...selected].filter((position) => there.has(position)));
  } catch (error) {
    if (mine === asked) list = { ...list, loading: false, problem: error.message };
  }
  stored = state.status?.errors.stored ?? null;
  changed();
}

export function open(params) {
  const wanted = wishes(params);
  if (JSON.stringify(wanted) !== JSON.stringify(at)) {
    list = { rows: [], next: null, loading: false, problem: null, looked: 0 };
    selected = new Set();
    at = wanted;
  }
  load();
}

export function close() {
  at = {};
  asked++;
}

const wish = (change) => go("errors", { ...at, ...change });
const some = (n) => (n === 1 ? "1 failed message" : `${count(n)} failed messages`);

// What an action is about: the selected ones, or all that match, counted now. Filter, fleet and time are those of this
// moment, whatever is shown when the count is there.
async function meant() {
  const [wanted, fleet, view] = [filter(), { fleet: chosen() }, at];
  if (selected.size > 0) return { fleet, change: { positions: [...selected] }, words: `the ${some(selected.size)} that you have selected` };
  const known = await get("errors/count", { ...wanted, ...fleet });
  if (at !== view) throw new Error("Nothing was done: another view was opened meanwhile");
  if (known.count === 0) return null;
  const matching = Object.keys(wanted).length > 0 ? ` that ${known.count === 1 ? "matches" : "match"}` : "";
  return { fleet, change: { filter: wanted, until: known.until }, words: `${known.is_all ? "" : "at least "}${some(known.count)}${matching}` };
}

async function change(path, { question, label, text, done, harm }) {
  let about = null;
  await perform(async () => { about = await meant(); return about ? null : "no failed message matches"; });
  if (!about) return;
  await confirm(question(about.words), text, label, async () => {
    let changed = 0;
    let after = null;
    do {
      const part = await post(path, { ...about.change, ...(after ? { after } : {}) }, about.fleet);
      changed += part.changed;
      after = part.after;
    } while (after);
    selected = new Set();
    load();
    return done(changed);
  }, { harm });
}

const requeue = () => change("errors/requeue", {
  question: (what) => `Put ${what} back to work?`, label: "Put back", text: "Each is added as a new message, with the old id as its origin.",
  done: (n) => `${some(n)} put back to work`,
});

const drop = () => change("errors/drop", {
  question: (what) => `Drop ${what}?`, label: "Drop", text: "They are removed for good. Export them first if you may need them.",
  done: (n) => `${some(n)} dropped`, harm: true,
});

// Pages of a taking that are held together, saved as one file, and only then removed.
const HELD_MAX = 10;

// Takes some: holds them, saves them, and says that they are here. Returns how many; 0 at the end.
async function takeSome(about, number) {
  const held = [];
  const rows = [];
  try {
    while (held.length < HELD_MAX) {
      const part = await post("errors/take", about.change, about.fleet);
      if (!part.taking) break;
      held.push(part.taking);
      rows.push(...part.errors);
    }
  } catch (error) {
    if (held.length === 0) throw error;
  }
  if (rows.length === 0) return 0;
  save(new Blob([rows.map((row) => `${JSON.stringify(row)}\n`).join("")], { type: "application/x-ndjson" }), number > 1 ? `taken-${number}.ndjson` : "taken.ndjson");
  let removed = 0;
  for (const taking of held) removed += (await post(within("errors/takings/*/confirm", taking), {}, about.fleet)).removed;
  if (removed < rows.length) throw new Error(`${some(rows.length - removed)} of the file are still stored`);
  return removed;
}

// Takes: what this tab was sent is removed only after it was handed to the browser as a file.
async function take() {
  let about = null;
  await perform(async () => { about = await meant(); return about ? null : "no failed message matches"; });
  if (!about) return;
  const sure = await show(`Take ${about.words}?`, h("p", {}, "This browser gets them as files, a thousand in each. Each is removed once its file was handed over; what was not handed over stays."),
    [["Cancel", "", null], ["Take", "harm", true]]);
  if (!sure) return;
  await perform(async () => {
    let [taken, part] = [0, 0];
    try {
      for (let number = 1; (part = await takeSome(about, number)) > 0; number++) taken += part;
    } catch (error) {
      throw taken > 0 ? new Error(`${some(taken)} taken, then: ${error.message}`) : error;
    } finally {
      selected = new Set();
      load();
    }
    return `${some(taken)} taken`;
  });
}

async function exports() {
  let about = null;
  await perform(async () => { about = await meant(); return about ? null : "no failed message matches"; });
  if (!about) return;
  const { positions, filter: matching, until } = about.change;
  const params = positions ? { positions: positions.join(",") } : { ...matching, until };
  await confirm(`Export ${about.words}?`, "This browser gets them as one file. Nothing is removed.", "Export", async () => {
    await download("errors/export", { ...about.fleet, ...params }, "errors.ndjson");
    return "exported; nothing was removed";
  });
}

async function openRow(row) {
  const shownIn = chosen();
  const buttons = [["Close", "", null],
    ["Copy", "", () => { navigator.clipboard?.writeText(payload(row, false)).then(() => toast("copied"), () => toast("this browser does not let a page copy", true)); }],
    ["Download", "", () => { perform(async () => { await download(within("errors/*/payload", row.position), {}, `${row.id}.txt`); }); }]];
  if (mayChange()) buttons.push(["Put back", "go", "requeue"]);
  const wanted = await show("Failed message", [facts([
    ["id", row.id], ["kind", row.kind], ["reason", h("span", { class: "reason" }, row.reason)], ["cause", row.cause],
    ["member", row.label || row.member], ["runs", count(row.attempt)], ["added", point(row.generated_ms)], ["failed", point(row.failed_ms)],
    ["was before", row.origin], ["size", bytes(row.payload_bytes)],
  ]), h("pre", { tabindex: 0, "aria-label": "payload" }, payload(row, false)),
  row.payload_cut ? h("p", { class: "soft" }, `The first 2 KiB of ${bytes(row.payload_bytes)}.`) : null], buttons);
  if (wanted === "requeue") {
    const fleet = { fleet: shownIn };
    await confirm("Put this failed message back to work?", "It is added as a new message, with the old id as its origin.", "Put back", async () => {
      const { changed: n } = await post("errors/requeue", { positions: [row.position] }, fleet);
      load();
      return n > 0 ? "it is back at work, under a new id" : "it is no longer stored";
    });
  }
}

function toggle(position) {
  if (selected.has(position)) selected.delete(position);
  else selected.add(position);
  changed();
}

export const keys = { r: () => { if (mayChange()) requeue(); } };

export function render() {
  const total = state.status?.errors.stored;
  const many = selected.size > 0 ? ` ${count(selected.size)}` : filters() ? " all that match" : " all";
  return [
    h("h1", { key: "h1" }, "Errors", h("span", { class: "more" }, h("button", { type: "button", onclick: exports }, `Export${many}`),
      mayChange() ? [h("button", { type: "button", key: "take", onclick: take }, `Take${many}…`), h("button", { type: "button", key: "drop", onclick: drop }, `Drop${many}…`),
        h("button", { type: "button", key: "requeue", class: "go", onclick: requeue }, `Put back${many}…`)] : null)),
    h("section", { class: "wide", key: "list", "aria-labelledby": "t" },
      h("div", { class: "bar" },
        h("input", { key: "q", type: "search", value: at.q, placeholder: "search payload, reason, kind, id", "aria-label": "Search errors", onchange: (event) => wish({ q: event.target.value }) }),
        h("select", { key: "cause", "aria-label": "Cause", onchange: (event) => wish({ cause: event.target.value }) },
          ["", ...CAUSES].map((cause) => h("option", { value: cause, selected: cause === at.cause }, cause || "any cause"))),
        h("select", { key: "since", "aria-label": "Since", onchange: (event) => wish({ since: event.target.value }) },
          SINCE.map(([ms, word]) => h("option", { value: ms, selected: ms === at.since }, word))),
        h("input", { key: "kind", value: at.kind, placeholder: "kind", "aria-label": "Kind", size: 10, onchange: (event) => wish({ kind: event.target.value }) }),
        h("input", { key: "member", value: at.member, placeholder: "member", "aria-label": "Member", size: 10, onchange: (event) => wish({ member: event.target.value }) }),
        h("button", { key: "again", type: "button", onclick: () => load() }, "Load again")),
      h("h2", { id: "t" }, "Newest first", h("span", { class: "more" },
        total !== undefined && stored !== null && total !== stored ? h("button", { type: "button", class: "link", onclick: () => load() }, `${count(Math.abs(total - stored))} ${total > stored ? "new" : "gone"}: load again`) : null,
        `${count(list.rows.length)} shown of ${count(total)} kept`)),
      list.problem ? h("p", { class: "problem", role: "alert" }, list.problem) : null,
      list.rows.length === 0 ? h("p", { class: "none" }, list.loading ? "Loading…" : filters() ? `Nothing fits among the ${count(list.looked)} newest.` : "No message has failed, or all were taken.")
        : h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "t" }, h("table", {}, h("thead", {}, h("tr", {},
          h("th", { scope: "col" }, h("span", { class: "unseen" }, "Select")), h("th", { scope: "col" }, "When"), h("th", { scope: "col", class: "hide" }, "Kind"),
          h("th", { scope: "col" }, "Reason"), h("th", { scope: "col", class: "hide" }, "Payload"), h("th", { scope: "col", class: "hide" }, "Member"), h("th", { scope: "col", class: "n" }, "Runs"))),
        h("tbody", {}, list.rows.map((row) => h("tr", { key: row.position, tabindex: 0, class: selected.has(row.position) ? "chosen" : null, onclick: () => openRow(row) },
          h("td", {}, h("input", { type: "checkbox", "aria-label": `select ${row.id}`, checked: selected.has(row.position), onclick: (event) => { event.stopPropagation(); toggle(row.position); } })),
          h("td", {}, point(row.failed_ms, now())), h("td", { class: "hide" }, row.kind ?? ""), h("td", { class: "reason cut" }, row.reason),
          h("td", { class: "id cut hide" }, payload(row)), h("td", { class: "hide" }, row.label), h("td", { class: "n" }, count(row.attempt))))))),
      list.next ? h("p", {}, h("button", { type: "button", disabled: list.loading, onclick: () => load(true) }, list.rows.length === 0 ? "Look further" : "More")) : null),
  ];
}

