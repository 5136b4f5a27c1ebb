// Messages that wait, that run, that wait for a time, and those that will be retried.

import { download, get, post, within } from "./api.js";
import { confirm, details, facts, perform, show } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, count, payload, point, short, span } from "./format.js";
import { changed, mayChange, now, state } from "./live.js";
import { go } from "./app.js";

export const title = "Messages";

const STATES = [["waiting", "Waiting"], ["claimed", "Running"], ["scheduled", "Scheduled"], ["retried", "Retried"]];
const LANES = ["returned", "high", "generated", "normal", "low"];
const LIMIT = 50;

let at = {};
let list = { rows: [], next: null, loading: false, problem: null, looked: 0 };
let asked = 0;

// What the list shows, from the address of the view.
function wishes(params) {
  const wanted = params.get("state") ?? "waiting";
  const busiest = LANES.reduce((best, lane) => ((state.status?.lanes[lane] ?? 0) > (state.status?.lanes[best] ?? 0) ? lane : best), "generated");
  return { state: STATES.some(([name]) => name === wanted) ? wanted : "waiting", lane: params.get("lane") ?? busiest,
    q: params.get("q") ?? "", kind: params.get("kind") ?? "" };
}

const isScheduled = () => at.state === "scheduled" || at.state === "retried";

async function load(more = false) {
  const mine = ++asked;
  list = { ...list, loading: true, problem: null, rows: more ? list.rows : list.rows };
  changed();
  const common = { q: at.q, kind: at.kind, limit: LIMIT, cursor: more ? list.next : null };
  try {
    const page = isScheduled()
      ? await get("scheduled", { ...common, retried: at.state === "retried" })
      : await get("messages", { ...common, state: at.state, lane: at.state === "waiting" ? at.lane : null });
    if (mine !== asked) return;
    list = { rows: more ? [...list.rows, ...page.messages] : page.messages, next: page.cursor, loading: false, problem: null, looked: page.looked };
  } catch (error) {
    if (mine === asked) list = { ...list, loading: false, problem: error.message };
  }
  changed();
}

export function open(params) {
  const wanted = wishes(params);
  const moved = JSON.stringify(wanted) !== JSON.stringify(at);
  at = wanted;
  if (moved) list = { rows: [], next: null, loading: false, problem: null, looked: 0 };
  load();
}

export function close() {
  at = {};
  asked++;
}

const wish = (change) => go("messages", { state: at.state, lane: at.state === "waiting" ? at.lane : "", q: at.q, kind: at.kind, ...change });

const labelOf = (id) => state.status?.members.find((member) => member.id === id)?.label ?? short(id);

async function openRow(row) {
  const scheduled = isScheduled();
  const what = facts([
    ["id", row.id], ["kind", row.kind], ["lane", row.lane], ["added", point(row.generated_ms)],
    ["claimed by", row.member ? `${labelOf(row.member)}, ${span(now() - row.claimed_ms)} ago` : null],
    ["due", scheduled ? `${point(row.due_ms)} (${row.overdue ? "overdue" : `in ${span(row.left_ms)}`})` : null],
    ["run", count(row.attempt)], ["retries", count(row.retries)], ["no handler here", row.waits ? count(row.waits) : null],
    ["size", bytes(row.payload_bytes)],
  ]);
  const path = scheduled ? within("scheduled/*/payload", row.id) : within("messages/*/payload", row.id);
  const params = scheduled ? {} : { state: at.state, lane: at.state === "waiting" ? at.lane : null, at: row.at };
  const body = [what, h("pre", { tabindex: 0, "aria-label": "payload" }, payload(row, false)),
    row.payload_cut ? h("p", { class: "soft" }, `The first 2 KiB of ${bytes(row.payload_bytes)}.`) : null];
  const buttons = [["Close", "", null],
    ["Download", "", () => { perform(async () => { await download(path, params, `${row.id}.txt`); }); }]];
  if (scheduled && mayChange()) buttons.push(["Cancel…", "harm", "cancel"], ["Move…", "", "move"], ["Run now…", "go", "run"]);
  const chosen = await show("Message", body, buttons);
  const done = (act, text) => async () => {
    await post(within("scheduled/*/*", row.id, act));
    load();
    return text;
  };
  if (chosen === "run") confirm("Run it now?", `${row.id} does not wait any longer.`, "Run now", done("run", "it runs now"));
  if (chosen === "cancel") confirm("Cancel it?", `${row.id} never runs. It counts as failed, and is not kept.`, "Cancel it", done("cancel", "it is cancelled"), { harm: true });
  if (chosen === "move") move(row);
}

async function move(row) {
  const field = h("input", { type: "number", id: "minutes", min: 0, step: "any", value: 10 });
  const minutes = await show("Move it", [h("p", {}, `${row.id} waits for another time.`), h("label", { for: "minutes" }, "Minutes from now"), field],
    [["Cancel", "", null], ["Move", "go", () => { const n = Number(field.value); return Number.isFinite(n) && n >= 0 ? n : undefined; }]], { focus: field });
  if (minutes === null) return;
  perform(async () => {
    await post(within("scheduled/*/move", row.id), { in_ms: Math.round(minutes * 60000) });
    load();
    return `it is due in ${span(minutes * 60000)}`;
  });
}

async function send() {
  const text = h("textarea", { id: "text", rows: 5 });
  const lane = h("select", { id: "lane" }, ["normal", "high", "low"].map((name) => h("option", { value: name }, name)));
  const kind = h("input", { id: "kind" });
  const minutes = h("input", { id: "later", type: "number", min: 0, step: "any", placeholder: "at once" });
  const sure = await show("Send a message", [h("label", { for: "text" }, "Payload"), text, h("div", { class: "two" },
    h("div", {}, h("label", { for: "lane" }, "Lane"), lane), h("div", {}, h("label", { for: "kind" }, "Kind, if any"), kind),
    h("div", {}, h("label", { for: "later" }, "Minutes from now"), minutes))],
  [["Cancel", "", null], ["Send", "go", true]], { focus: text });
  if (!sure) return;
  perform(async () => {
    const message = { payload: text.value };
    if (kind.value) message.kind = kind.value;
    if (Number(minutes.value) > 0) message.in_ms = Math.round(Number(minutes.value) * 60000);
    const { ids } = await post("messages", { lane: lane.value, messages: [message] });
    load();
    return `sent: ${ids[0]}`;
  });
}

// Looks for one message wherever it is.
export async function find() {
  const field = h("input", { id: "find" });
  const id = await show("Find a message", [h("label", { for: "find" }, "Its id"), field],
    [["Cancel", "", null], ["Find", "go", () => field.value.trim() || undefined]], { focus: field });
  if (!id) return;
  perform(async () => {
    const found = await get(within("messages/*", id));
    const { v, record, ...rest } = found;
    void v;
    details(`Message ${id}`, facts(Object.entries(rest).filter(([name]) => name !== "id").map(([name, value]) =>
      [name.replace(/_ms$/, "").replace(/_/g, " "), name.endsWith("_ms") ? point(value) : String(value ?? "")])),
    record ? [facts([["reason", record.reason], ["cause", record.cause], ["by", record.label]]), h("pre", { tabindex: 0, "aria-label": "payload" }, payload(record, false))] : null);
  });
}

function head() {
  const columns = { waiting: ["Added", "Run"], claimed: ["Claimed", "Worker"], scheduled: ["Due", "Run"], retried: ["Due", "Retries"] }[at.state];
  return h("thead", {}, h("tr", {}, h("th", { scope: "col" }, columns[0]), h("th", { scope: "col", class: columns[1] === "Worker" ? "" : "n" }, columns[1]),
    h("th", { scope: "col", class: "hide" }, "Kind"), h("th", { scope: "col" }, "Payload"), h("th", { scope: "col", class: "hide" }, "Id")));
}

function cells(row) {
  switch (at.state) {
    case "claimed": return [span(Math.max(0, now() - row.claimed_ms)), h("td", {}, labelOf(row.member))];
    case "scheduled": return [row.overdue ? "overdue" : `in ${span(Math.max(0, row.due_ms - now()))}`, h("td", { class: "n" }, count(row.attempt))];
    case "retried": return [row.overdue ? "overdue" : `in ${span(Math.max(0, row.due_ms - now()))}`, h("td", { class: "n" }, count(row.retries))];
    default: return [point(row.generated_ms, now()), h("td", { class: "n" }, count(row.attempt))];
  }
}

export const keys = { n: () => { if (mayChange()) send(); } };

export function render() {
  const total = { waiting: state.status?.lanes[at.lane], claimed: state.status?.messages.claimed, scheduled: state.status?.messages.scheduled }[at.state];
  return [
    h("h1", { key: "h1" }, "Messages",
      h("span", { class: "tabs" }, STATES.map(([name, word]) => h("a", { key: name, href: `#/messages?state=${name}`, "aria-current": at.state === name ? "page" : null }, word)),
        h("a", { key: "failed", href: "#/errors" }, "Failed")),
      h("span", { class: "more" }, h("button", { type: "button", onclick: find }, "Find…"), mayChange() ? h("button", { type: "button", class: "go", onclick: send }, "Send…") : null)),
    h("section", { class: "wide", key: "list", "aria-labelledby": "t" },
      h("div", { class: "bar" },
        at.state === "waiting" ? h("select", { key: "lane", "aria-label": "Lane", onchange: (event) => wish({ lane: event.target.value }) },
          LANES.map((lane) => h("option", { value: lane, selected: lane === at.lane }, `${lane} (${count(state.status?.lanes[lane])})`))) : null,
        h("input", { key: "q", type: "search", value: at.q, placeholder: "search payload, kind, id", "aria-label": "Search messages", onchange: (event) => wish({ q: event.target.value }) }),
        h("input", { key: "kind", value: at.kind, placeholder: "kind", "aria-label": "Kind", size: 12, onchange: (event) => wish({ kind: event.target.value }) }),
        h("button", { key: "again", type: "button", onclick: () => load() }, "Load again")),
      h("h2", { id: "t" }, STATES.find(([name]) => name === at.state)?.[1] ?? "", h("span", { class: "more" },
        `${count(list.rows.length)} shown${total !== undefined ? ` of ${count(total)}` : ""}`)),
      list.problem ? h("p", { class: "problem", role: "alert" }, list.problem) : null,
      list.rows.length === 0 ? h("p", { class: "none" }, list.loading ? "Loading…" : at.q || at.kind ? `Nothing fits among the ${count(list.looked)} that were looked at.` : "There are none.")
        : h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "t" }, h("table", {}, head(), h("tbody", {}, list.rows.map((row) => {
            const [first, second] = cells(row);
            return h("tr", { key: `${row.id}`, tabindex: 0, onclick: () => openRow(row) }, h("td", {}, first), second,
              h("td", { class: "hide" }, row.kind ?? ""), h("td", { class: "id cut" }, payload(row)), h("td", { class: "id hide" }, row.id));
          })))),
      list.next ? h("p", {}, h("button", { type: "button", disabled: list.loading, onclick: () => load(true) }, "More")) : null),
  ];
}
