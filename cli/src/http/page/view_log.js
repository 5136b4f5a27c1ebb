// The common log: what happened to the fleet, from all its members, live.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, point } from "./format.js";
import { changed, now, state } from "./live.js";
import { go } from "./app.js";

export const title = "Log";

const KINDS = ["joined", "left", "died", "elected", "resigned", "adopted", "ordered", "acted", "errors-requeued", "errors-dropped", "cron-set", "errors", "data-loss", "server-changed", "disconnected", "reconnected"];

let at = {};
let list = { rows: [], next: null, loading: false, problem: null };
let asked = 0;

async function load(more = false) {
  const mine = ++asked;
  list = { ...list, loading: true, problem: null };
  changed();
  try {
    const page = await get("log", { ...at, limit: 100, before: more ? list.next : null });
    if (mine !== asked) return;
    list = { rows: more ? [...list.rows, ...page.entries] : page.entries, next: page.before, loading: false, problem: null };
  } catch (error) {
    if (mine === asked) list = { ...list, loading: false, problem: error.message };
  }
  changed();
}

export function open(params) {
  const text = (name) => params.get(name) ?? "";
  at = { q: text("q"), kind: text("kind"), member: text("member") };
  load();
}

export function close() {
  at = {};
  asked++;
  list = { rows: [], next: null, loading: false, problem: null };
}

const wish = (change) => go("log", { ...at, ...change });

function fits(entry) {
  const words = `${entry.kind} ${entry.label ?? ""} ${entry.text}`.toLowerCase();
  return (!at.kind || entry.kind === at.kind) && (!at.member || entry.label === at.member || entry.member?.startsWith(at.member)) && words.includes((at.q ?? "").toLowerCase());
}

const newer = (a, b) => {
  const [x, y] = [a.split("-"), b.split("-")];
  return Number(x[0]) - Number(y[0]) || Number(x[1]) - Number(y[1]);
};

export function render() {
  const newest = list.rows[0]?.id ?? "0-0";
  const live = list.loading && list.rows.length === 0 ? [] : state.log.filter((entry) => newer(entry.id, newest) > 0 && fits(entry)).reverse();
  const rows = [...live, ...list.rows];
  return [h("h1", { key: "h1" }, "Log"),
    h("section", { class: "wide", key: "list", "aria-labelledby": "t" },
      h("div", { class: "bar" }, h("input", { key: "q", type: "search", value: at.q, placeholder: "search", "aria-label": "Search the log", onchange: (event) => wish({ q: event.target.value }) }),
        h("select", { key: "kind", "aria-label": "Kind of entry", onchange: (event) => wish({ kind: event.target.value }) }, ["", ...KINDS].map((kind) => h("option", { value: kind, selected: kind === at.kind }, kind || "all kinds"))),
        h("input", { key: "member", value: at.member, placeholder: "member", "aria-label": "Member", size: 12, onchange: (event) => wish({ member: event.target.value }) })),
      h("h2", { id: "t" }, "All members, newest first", h("span", { class: "more" }, `${count(rows.length)} shown`)),
      list.problem ? h("p", { class: "problem", role: "alert" }, list.problem) : null,
      rows.length === 0 ? h("p", { class: "none" }, list.loading ? "Loading…" : "No entry fits.")
        : h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "t" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "When"), h("th", { scope: "col" }, "Member"), h("th", { scope: "col", class: "hide" }, "Kind"), h("th", { scope: "col" }, "What"))),
          h("tbody", {}, rows.map((entry) => h("tr", { key: entry.id }, h("td", { class: "id" }, point(entry.time_ms, now())), h("td", {}, h("b", {}, entry.label ?? "")),
            h("td", { class: "soft hide" }, entry.kind), h("td", { class: "words" }, entry.text)))))),
      list.next ? h("p", {}, h("button", { type: "button", disabled: list.loading, onclick: () => load(true) }, "More")) : null)];
}
