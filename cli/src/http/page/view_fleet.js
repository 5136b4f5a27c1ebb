// Who leads, who works, how it goes.

import { chosen, get, post, within } from "./api.js";
import { confirm, details, show } from "./dialog.js";
import { h, width } from "./dom.js";
import { clock, count, point, rate, short, small, span, spark } from "./format.js";
import { mayChange, now, state } from "./live.js";

export const title = "Fleet";

const FINDINGS_EVERY = 60000;
const EXPECTED_FAILED = 5; // of 100: what the built-in handler finds in error

let findings = null;
let timer = null;
let ticker = null;

export function open() {
  if (timer) return;
  const ask = async () => {
    const [of, mine] = [chosen(), ticker];
    try {
      const found = await get("findings");
      if (chosen() === of && ticker === mine) findings = found;
    } catch { /* later */ }
  };
  timer = setInterval(ask, FINDINGS_EVERY);
  ticker = setInterval(lease, 250);
  ask();
}

export function close() {
  clearInterval(timer);
  clearInterval(ticker);
  timer = ticker = findings = null;
}

const REASONS = { died: "died", left: "stopped", resigned: "handed over", first: "first", again: "again" };

function from(entry) {
  const before = entry.from_label ?? short(entry.from);
  const after = entry.label ?? short(entry.member);
  return before ? `${before} → ${after}` : `→ ${after}`;
}

// How much is left of the lease now, by the time of Redis.
function left() {
  const { status } = state;
  return status.generator ? Math.max(0, status.generator.lease_ms - (now() - status.time_ms)) : 0;
}

function lease() {
  const node = document.querySelector(".lease");
  if (!node || !state.status?.generator || state.connection !== "live") return;
  const share = left() / (state.status.lease_ms || 1);
  node.classList.toggle("low", share < 0.34);
  node.setAttribute("aria-valuenow", Math.round(left()));
  width(node.firstChild, share);
}

function generator() {
  const { status } = state;
  const leads = status.generator;
  const member = leads && status.members.find((one) => one.id === leads.member);
  const since = leads ? Number(leads.term) / 1000 : null; // a term is a time, in microseconds
  const may = mayChange() && leads;
  return h("section", { class: "wide", "aria-labelledby": "g", key: "generator" },
    h("h2", { id: "g" }, "Generator", h("span", { class: "more" }, may ? h("button", { type: "button", onclick: () =>
      confirm("Step down?", `${leads.label} gives up its lease, and another member leads.`, "Step down", async () => {
        await post("step-down");
        return `${leads.label} was asked to step down`;
      }) }, "Step down…") : null)),
    leads
      ? h("div", { class: "lead" },
          h("strong", { id: "leader" }, leads.label || short(leads.member)),
          h("small", {}, `${member ? `${member.host}:${member.pid} · ` : ""}term ${leads.term} · leads for ${span(Math.max(0, now() - since))}`),
          h("div", { class: "lease", role: "meter", "aria-label": "What is left of the lease, in ms", "aria-valuemin": 0,
            "aria-valuemax": status.lease_ms, "aria-valuenow": Math.round(left()) },
            width(h("i", {}), left() / (status.lease_ms || 1))))
      : h("p", { class: "none", id: "leader" }, status.members.some((one) => one.can_lead)
          ? `Nobody leads, for ${span(status.leaderless_ms)}.` : "Nobody here can lead: all work on what is sent."),
    state.elections.length > 0
      ? h("ol", { class: "line", id: "timeline", "aria-label": "Changes of the generator, the newest last" },
          state.elections.slice(-5).map((entry) => h("li", { key: entry.id },
            h("b", {}, from(entry)), h("br"), `${REASONS[entry.why] ?? "nobody led"}`,
            entry.gap_ms !== undefined && entry.why !== "first" ? ` · ${span(Number(entry.gap_ms))}` : "", h("br"), point(entry.time_ms))))
      : null);
}

// The growth of a count, per second, between the points that were read.
function growth(name) {
  const { trends } = state;
  if (!trends) return [];
  const rates = [];
  for (let at = 1; at < trends.time_ms.length; at++) {
    const seconds = (trends.time_ms[at] - trends.time_ms[at - 1]) / 1000;
    const more = trends[name][at] - trends[name][at - 1];
    rates.push(seconds > 0 && more >= 0 && seconds < 60 ? more / seconds : null);
  }
  return rates;
}

const level = (name) => state.trends?.[name] ?? [];

function failedShare() {
  const failed = growth("failed");
  return growth("done").map((done, at) => {
    const all = done === null || failed[at] === null ? 0 : done + failed[at];
    return all > 0 ? (failed[at] / all) * 100 : null;
  });
}

// The share of failed messages in the last minute.
function lately() {
  const { trends, status } = state;
  const at = trends ? Math.max(0, trends.time_ms.length - 13) : 0;
  if (!trends || trends.time_ms.length === 0) return null;
  const failed = status.messages.failed - trends.failed[at];
  const all = failed + status.messages.done - trends.done[at];
  return all > 0 && failed >= 0 ? (failed / all) * 100 : null;
}

function tile(name, value, values, { href, most, line, bad } = {}) {
  const path = spark(values, most);
  const drawn = h("svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" },
    line ? h("path", { class: "ref", d: `M0 ${line}H100` }) : null, h("path", { d: path || "M0 25H0" }));
  const inside = [h("span", {}, name), h("b", {}, value), drawn];
  const props = { class: bad ? "tile bad" : "tile", key: name.split(" · ")[0] };
  return href ? h("a", { ...props, href }, inside) : h("div", props, inside);
}

function tiles() {
  const { status, rates } = state;
  const messages = status.messages;
  const share = lately();
  const shares = failedShare();
  const most = Math.max(10, ...shares.filter((one) => one !== null));
  const made = growth("generated").map((one, at) => (one === null ? null : one + (growth("sent")[at] ?? 0)));
  const here = status.members.filter((member) => member.role !== "overdue").length;
  return h("div", { class: "tiles wide", key: "tiles", id: "tiles" },
    tile("in / s", rates ? rate(rates.generated + rates.sent) : "–", made, { href: "#/messages?state=waiting" }),
    tile("done / s", rates ? rate(rates.done) : "–", growth("done"), { href: "#/messages?state=claimed" }),
    tile("failed, of 100", share === null ? "–" : rate(share), shares, { href: "#/errors", most, line: 25 - (EXPECTED_FAILED / most) * 23 }),
    tile("waiting", count(messages.waiting), level("waiting"), { href: "#/messages?state=waiting" }),
    tile("oldest waiting", messages.waiting > 0 ? span(status.oldest_waiting_ms) : "–", level("oldest_waiting_ms"), { href: "#/messages?state=waiting" }),
    tile(messages.scheduled > 0 && status.next_due_ms !== null ? `scheduled · next in ${span(Math.max(0, status.next_due_ms))}` : "scheduled", count(messages.scheduled),
      level("scheduled"), { href: "#/messages?state=scheduled" }),
    messages.balance === 0
      ? tile("members", count(here), level("members"))
      : tile("books", `balance ${messages.balance}`, level("members"), { bad: true }));
}

const natural = new Intl.Collator("en", { numeric: true });

function openMember(member, numbers) {
  const kinds = member.kinds.length > 0 ? member.kinds.join(", ") : null;
  const drained = member.is_drained;
  const act = async () => {
    await post(within("members/*/*", member.id, drained ? "resume" : "drain"));
    return drained ? `${member.label} works again` : `${member.label} is drained: it finishes what it has started`;
  };
  const buttons = [["Close", "", null]];
  if (mayChange()) buttons.push([drained ? "Resume" : "Drain…", "go", "act"]);
  show(member.label || short(member.id), h("dl", {}, [
    ["id", member.id], ["role", member.role], ["host", `${member.host}:${member.pid}`], ["kinds", kinds],
    ["running", count(member.in_flight)], ["claimed", count(member.claimed)], ["done", count(member.done)],
    ["failed", count(member.failed)], ["up for", numbers ? span(numbers.uptime_ms) : null],
    ["handler p50, p99", numbers?.handler_p50_ms != null ? `${rate(numbers.handler_p50_ms)} ms, ${rate(numbers.handler_p99_ms)} ms` : null],
    ["round trip to Redis", numbers ? `${rate(numbers.redis_rtt_ms)} ms` : null],
    ["memory", numbers?.memory_bytes ? `${count(numbers.memory_bytes / (1 << 20))} MiB` : null],
  ].filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), buttons).then((chosen) => {
    if (chosen !== "act") return;
    if (drained) confirm("Resume?", `${member.label} fetches messages again.`, "Resume", act);
    else confirm("Drain?", `${member.label} finishes what it has started, fetches nothing and does not lead, until it is resumed.`, "Drain", act);
  });
}

function members() {
  const { status, stats } = state;
  const all = [...status.members].sort((a, b) => natural.compare(a.label, b.label));
  const by = new Map((stats?.members ?? []).map((one) => [one.id, one]));
  return h("section", { "aria-labelledby": "m", key: "members", id: "members" },
    h("h2", { id: "m" }, "Members", h("span", { class: "more" }, `${count(all.length)} here`,
      status.orphans > 0 ? ` · what ${status.orphans} dead ones held is being put back` : "")),
    all.length === 0 ? h("p", { class: "none" }, "Nobody is here.") :
    h("div", { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "m" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Label", "Role"].map((name) => h("th", { scope: "col" }, name)),
        h("th", { scope: "col", class: "hide" }, "Host"), h("th", { scope: "col", class: "n" }, "Running"),
        h("th", { scope: "col", class: "n" }, "Done"), h("th", { scope: "col", class: "n" }, "Failed"),
        h("th", { scope: "col", class: "n hide" }, "p50 / p99"), h("th", { scope: "col", class: "n" }, "Seen"))),
      h("tbody", {}, all.map((member) => {
        const numbers = by.get(member.id);
        const late = member.seen_ms > status.lease_ms / 2 || member.role === "overdue";
        return h("tr", { key: member.id, tabindex: 0, onclick: () => openMember(member, numbers) },
          h("td", {}, h("b", {}, member.label || short(member.id))),
          h("td", {}, member.role === "generator" ? h("span", { class: "pill leads" }, "generator")
            : member.is_drained ? h("span", { class: "pill warn" }, "drained")
            : member.role === "overdue" ? h("span", { class: "pill bad" }, "overdue") : member.role),
          h("td", { class: "id hide" }, `${member.host}:${member.pid}`),
          h("td", { class: "n" }, count(member.in_flight)), h("td", { class: "n" }, count(member.done)),
          h("td", { class: "n" }, count(member.failed)),
          h("td", { class: "n hide" }, numbers?.handler_p50_ms != null ? `${rate(numbers.handler_p50_ms)} / ${rate(numbers.handler_p99_ms)} ms` : "–"),
          h("td", { class: "n" }, late ? h("span", { class: "pill warn" }, `${span(member.seen_ms)} late`) : span(member.seen_ms)));
      })))));
}

const LANES = ["returned", "high", "generated", "normal", "low"];

function lanes() {
  const { status } = state;
  const all = status.paused.includes("all") || status.paused.includes("everything");
  const act = (path, done) => async () => { await post(path); return done; };
  return h("section", { "aria-labelledby": "l", key: "lanes" },
    h("h2", { id: "l" }, "Lanes", h("span", { class: "more" }, mayChange() ? (all
      ? h("button", { type: "button", class: "small", onclick: () => confirm("Resume everything?", "Members fetch from all lanes again.", "Resume", act("resume", "everything goes on")) }, "Resume all…")
      : h("button", { type: "button", class: "small", onclick: () => confirm("Pause everything?", "No member fetches anything. Nothing is lost: messages wait in their lanes.", "Pause", act("pause", "everything is paused")) }, "Pause all…")) : null)),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Lane"), h("th", { scope: "col", class: "n" }, "Waiting"), h("th", { scope: "col" }, h("span", { class: "unseen" }, "State")))),
      h("tbody", {}, LANES.map((lane) => {
        const paused = status.paused.some((what) => what === lane || what === `lane ${lane}`);
        return h("tr", { key: lane },
          h("td", {}, h("a", { href: `#/messages?state=waiting&lane=${lane}` }, lane)),
          h("td", { class: "n" }, count(status.lanes[lane])),
          h("td", { class: "n" }, paused || (all && lane !== "returned") ? h("span", { class: "pill warn" }, "paused") : null, " ",
            mayChange() && lane !== "returned" ? h("button", { type: "button", class: "small", "aria-label": `${paused ? "resume" : "pause"} ${lane}`, onclick: () => (paused
              ? confirm(`Resume ${lane}?`, "Members fetch from this lane again.", "Resume", act(within("lanes/*/resume", lane), `${lane} goes on`))
              : confirm(`Pause ${lane}?`, "No member fetches from this lane. Nothing is lost: messages wait.", "Pause", act(within("lanes/*/pause", lane), `${lane} is paused`))) },
              paused ? "Resume…" : "Pause…") : null));
      }))));
}

function recent() {
  const last = state.log.slice(-10).reverse();
  return h("section", { "aria-labelledby": "r", key: "recent" },
    h("h2", { id: "r" }, "Log", h("span", { class: "more" }, h("a", { href: "#/log" }, "all of it"))),
    last.length === 0 ? h("p", { class: "none" }, "Nothing yet.") :
    h("ol", { class: "log" }, last.map((entry) => h("li", { key: entry.id },
      h("time", {}, clock(entry.time_ms)), h("span", {}, entry.label ? [h("b", {}, entry.label), " "] : null, entry.text)))));
}

const LEVELS = { good: ["ok", "good"], advice: ["warn", "advice"], danger: ["bad", "danger"] };

function openFindings() {
  details("What endangers the promise", findings.findings.map((one) => {
    const [kind, word] = LEVELS[one.level] ?? LEVELS.danger;
    return h("div", { class: "finding" }, h("span", {}, h("span", { class: `pill ${kind}` }, word)),
      h("p", {}, h("b", {}, one.check), ` ${one.what}`), one.consequence ? h("p", {}, one.consequence) : null,
      one.mend ? h("p", { class: "soft" }, `mend: ${one.mend}`) : null);
  }));
}

function redis() {
  const { status } = state;
  const found = findings?.findings ?? [];
  const dangers = found.filter((one) => one.level === "danger").length;
  const advice = found.filter((one) => one.level === "advice").length;
  const pill = !findings ? null : dangers > 0 ? ["bad", `${dangers} in danger`] : advice > 0 ? ["warn", `${advice} to look at`] : ["ok", "fit"];
  return h("section", { "aria-labelledby": "d", key: "redis" },
    h("h2", { id: "d" }, "Redis", h("span", { class: "more" }, pill ? h("button", { type: "button", class: `pill ${pill[0]}`, onclick: openFindings }, h("i", { class: "dot" }), pill[1]) : null)),
    h("dl", {}, [
      ["server", `${status.redis.server} ${status.redis.version}`], ["round trip", `${small(status.redis.rtt_ms)} ms`],
      ["books", `balance ${status.messages.balance}`], ["claimed", count(status.messages.claimed)],
      ["done", count(status.messages.done)], ["failed", count(status.messages.failed)],
      ["retried", count(status.messages.retried)], ["put back", count(status.messages.returned)],
      ["errors kept", count(status.errors.stored)],
    ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

// The numbers behind the lines, by the minute.
export function numbers() {
  const { trends } = state;
  if (!trends) return;
  const every = Math.max(1, Math.round(60000 / trends.every_ms));
  const names = [["generated", growth("generated")], ["sent", growth("sent")], ["done", growth("done")], ["failed", growth("failed")]];
  const rows = [];
  for (let at = trends.time_ms.length - 1; at > 0; at -= every) {
    rows.push(h("tr", {}, h("td", { class: "id" }, clock(trends.time_ms[at])),
      names.map(([, values]) => h("td", { class: "n" }, rate(values[at - 1]))),
      ["waiting", "oldest_waiting_ms", "scheduled", "members"].map((name) =>
        h("td", { class: "n" }, name === "oldest_waiting_ms" ? span(trends[name][at]) : count(trends[name][at])))));
  }
  details("The last fifteen minutes", h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "The last fifteen minutes" }, h("table", {}, h("thead", {}, h("tr", {},
    ["", "generated / s", "sent / s", "done / s", "failed / s", "waiting", "oldest", "scheduled", "members"].map((name) =>
      h("th", { scope: "col", class: "n" }, name)))), h("tbody", {}, rows))));
}

export function render() {
  if (!state.status) {
    return [h("p", { class: "none wide", key: "wait" }, state.trouble ? "There is nothing to show yet." : "Loading…")];
  }
  return [h("h1", { class: "unseen", key: "h1" }, "Fleet"), generator(), tiles(),
    h("div", { class: "stack", key: "left" }, members(), recent()), h("div", { class: "stack", key: "side" }, lanes(), redis())];
}

