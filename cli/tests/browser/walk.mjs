// Walks through the page in a real browser. The test that started it does what a browser cannot: it reads `DO …` here, and
// answers with a line.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const require = createRequire(join(process.env.ARTEL_BROWSER, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [, , scenario, base, pictures] = process.argv;
const DEADLINE = 30000;

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// Has the test do something; returns what it answers.
async function act(what) {
  console.log(`DO ${what}`);
  const { value, done } = await lines.next();
  if (done) throw new Error(`nobody did: ${what}`);
  return JSON.parse(value);
}

function check(is, what) {
  if (!is) throw new Error(`not so: ${what}`);
}

// Waits for something that must come.
async function until(what, ask) {
  const begun = Date.now();
  for (;;) {
    if (await ask()) return Date.now() - begun;
    if (Date.now() - begun > DEADLINE) throw new Error(`in vain: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

const browser = await chromium.launch({
  executablePath: process.env.ARTEL_CHROMIUM,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

// A page that reaches nothing but its own port; what it says to its console, and what else it asks for, is kept.
async function open(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
  const { origin } = new URL(url);
  page.faults = [];
  page.expects = [];
  await context.route("**/*", (route) => {
    if (new URL(route.request().url()).origin === origin) return route.continue();
    page.faults.push(`it asked for ${route.request().url()}`);
    return route.abort();
  });
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !page.expects.some((words) => message.text().includes(words))) page.faults.push(message.text());
  });
  page.on("pageerror", (error) => page.faults.push(error.stack));
  page.on("dialog", (dialog) => { page.faults.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  await page.goto(url);
  await page.waitForSelector("#leader, tbody, .none");
  return page;
}

const text = (page, selector) => page.locator(selector).first().innerText();
const number = (page, name) => page.locator(`#tiles .tile:has(span:text-is("${name}")) b`).innerText();
const whole = (page) => page.locator("main").innerText();

async function go(page, view) {
  await page.evaluate((hash) => { location.hash = hash; }, `#/${view}`);
}

function fine(page) {
  check(page.faults.length === 0, `nothing is wrong: ${page.faults.join("\n")}`);
}

const scenarios = {
  // Tiles move, a killed generator is replaced, and a stream that broke goes on, all without loading again.
  async live() {
    const page = await open(base);
    await page.evaluate(() => { window.sameAsBefore = true; });
    await page.waitForSelector("#leader");
    const done = () => page.locator("#members tbody tr td:nth-child(5)").allInnerTexts().then((all) => all.map((one) => Number(one.replace(/,/g, ""))).reduce((a, b) => a + b, 0));
    const before = await done();
    await until("done messages to be counted", async () => (await done()) > before);
    await until("a rate", async () => (await number(page, "done / s")) !== "–");
    const leader = await text(page, "#leader");
    const changes = await page.locator("#timeline li").count();
    await act("kill-generator");
    const took = await until("another generator", async () => (await text(page, "#leader")) !== leader);
    await until("the change in the timeline", async () => (await page.locator("#timeline li").count()) > changes);
    const line = await page.locator("#timeline li").last().innerText();
    check(line.includes("died") && line.includes(await text(page, "#leader")), `the timeline says so: ${line}`);
    console.log(`another generator was on the page after ${took} ms: ${line.replace(/\s+/g, " ")}`);

    // The process that serves the page dies, things happen, and it comes back.
    page.expects = ["Failed to load resource", "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY"];
    await act("kill-serve");
    await until("the page to say so", async () => (await text(page, "#right")).includes("reconnecting"));
    await act("orders");
    await act("start-serve");
    await until("the page to recover", async () => (await text(page, "#right")).includes("live"));
    await page.keyboard.press("l");
    const { ids } = await act("log-ids");
    const listed = () => page.evaluate(async () => (await import("./page/live.js")).state.log.map((entry) => entry.id));
    await until("all that happened to be there", async () => (await listed()).includes(ids.at(-1)));
    const there = await listed();
    const first = there[0];
    const known = ids.slice(ids.indexOf(first));
    check(JSON.stringify(there.filter((id) => known.includes(id))) === JSON.stringify(known), `no notice is missing or twice: ${there} ${known}`);

    // A paused page asks for nothing, and goes on where it was.
    await page.keyboard.press("f");
    await page.keyboard.press("p");
    await until("the pause", async () => (await text(page, "#right")).includes("paused"));
    await act("orders");
    await page.keyboard.press("p");
    const { ids: more } = await act("log-ids");
    await until("what happened meanwhile", async () => (await listed()).includes(more.at(-1)));
    check(new Set(await listed()).size === (await listed()).length, "nothing twice");

    // Redis is away and comes back.
    await act("stop-redis");
    await until("the banner", async () => (await whole(page)).includes("What is shown is"));
    await act("start-redis");
    await until("it to go on", async () => !(await whole(page)).includes("What is shown is"));
    const count = await done();
    await until("work to flow", async () => (await done()) > count);
    check(await page.evaluate(() => window.sameAsBefore === true), "it was never loaded again");
    fine(page);
  },

  // What is taken is what was shown; what is put back runs; what is foreign stays text.
  async errors() {
    const page = await open(`${base}#/errors`);
    const rows = page.locator("main tbody tr");
    const stored = async () => (await act("stored")).count;
    await until("the failed messages", async () => (await rows.count()) === (await stored()));
    const all = await stored();
    check((await whole(page)).includes("<img src=x onerror=alert(1)>"), "markup is text");
    check((await page.locator("img").count()) === 0, "there is no picture");

    await rows.nth(0).locator("input").click();
    await rows.nth(1).locator("input").click();
    check((await page.locator("dialog").count()) === 0, "selecting opens nothing");
    const chosen = await rows.evaluateAll((rows) => rows.slice(0, 2).map((row) => row.querySelector("input").getAttribute("aria-label").replace("select ", "")));
    await page.getByRole("button", { name: "Take 2…" }).click();
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Take", exact: true }).click()]);
    const taken = readFileSync(await file.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line).id);
    check(JSON.stringify(taken.sort()) === JSON.stringify(chosen.sort()), `what was selected was taken: ${taken} ${chosen}`);
    await until("exactly two to be gone", async () => (await stored()) === all - 2 && (await rows.count()) === all - 2);

    // A filter is part of the address, and what matches is put back to work.
    await page.locator("input[type=search]").fill("again");
    await page.keyboard.press("Enter");
    await until("the filter", async () => page.url().includes("q=again") && (await rows.count()) === 1);
    await page.getByRole("button", { name: "Put back all that match…" }).click();
    check((await text(page, "dialog")).includes("1 failed message that matches"), "the count comes first");
    const { done } = await act("done");
    await page.getByRole("button", { name: "Put back", exact: true }).click();
    await until("it to run again", async () => (await act("done")).done === done + 1);
    await go(page, "errors");
    await until("it to fail again", async () => (await rows.count()) === all - 2);

    // A large payload is cut, and can be had whole.
    await page.locator("tr", { hasText: "large" }).first().click();
    check((await text(page, "dialog")).includes("The first 2 KiB of 1 MiB"), "it is cut");
    const [large] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
    check(readFileSync(await large.path()).length === (1 << 20), "all of it");
    await page.keyboard.press("Escape");
    // What is exported is what was counted, or selected.
    const exporting = async (button, words) => {
      await page.getByRole("button", { name: button, exact: true }).click();
      check((await text(page, "dialog")).includes(words), "the count comes first");
      const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export", exact: true }).click()]);
      await until("the dialog to close", async () => (await page.locator("dialog").count()) === 0);
      return file;
    };
    const few = [1, 3];
    for (const at of few) await rows.nth(at).locator("input").click();
    const two = await exporting("Export 2", "the 2 failed messages that you have selected");
    const named = await rows.evaluateAll((rows, few) => few.map((at) => rows[at].querySelector("input").getAttribute("aria-label").replace("select ", "")), few);
    const got = readFileSync(await two.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line).id);
    check(JSON.stringify(got.sort()) === JSON.stringify(named.sort()), `the selected ones: ${got} ${named}`);
    for (const at of few) await rows.nth(at).locator("input").click();
    const exported = await exporting("Export all", `${all - 2} failed messages`);
    check(readFileSync(await exported.path(), "utf8").trim().split("\n").length === all - 2, "exported, and still there");
    check((await stored()) === all - 2, "nothing was removed");

    // One that is looked at is put back only after a question.
    await page.locator("tr", { hasText: "again" }).first().click();
    await page.getByRole("button", { name: "Put back", exact: true }).click();
    await until("the question", async () => (await text(page, "dialog")).includes("Put this failed message back to work?"));
    await page.getByRole("button", { name: "Cancel", exact: true }).click();
    await until("the dialog to close", async () => (await page.locator("dialog").count()) === 0);
    check((await stored()) === all - 2, "nothing was put back");
    const { done: before } = await act("done");
    await page.locator("tr", { hasText: "again" }).first().click();
    await page.getByRole("button", { name: "Put back", exact: true }).click();
    await until("the question", async () => (await text(page, "dialog")).includes("Put this failed message back to work?"));
    await page.getByRole("button", { name: "Put back", exact: true }).click();
    await until("it to run again", async () => (await act("done")).done === before + 1);
    await until("it to fail again", async () => (await stored()) === all - 2);
    await page.getByRole("button", { name: "Load again", exact: true }).click();

    // What stands in a field is what is applied.
    const box = page.locator("input[type=search]");
    await box.fill("again");
    await page.keyboard.press("Enter");
    await until("the filter", async () => (await rows.count()) === 1);
    await page.getByRole("link", { name: /^Errors/ }).click();
    await until("all of them, and an empty field", async () => (await rows.count()) === all - 2 && (await box.inputValue()) === "");

    // The view is left while the count is on its way: nothing may be done to what nobody has seen.
    await box.fill("again");
    await page.keyboard.press("Enter");
    await until("the filter", async () => (await rows.count()) === 1);
    let counted = () => {};
    const count = new Promise((done) => { counted = done; });
    await page.route("**/errors/count*", async (route) => { await count; await route.continue(); });
    await page.getByRole("button", { name: "Drop all that match…" }).click();
    await go(page, "fleet");
    await page.waitForSelector("#members");
    counted();
    await page.waitForSelector(".toast.bad");
    check((await text(page, ".toast.bad")).includes("Nothing was done"), "it says so");
    check((await page.locator("dialog").count()) === 0 && (await stored()) === all - 2, "nothing was asked, nothing dropped");
    await go(page, "constructor");
    await until("a view that there is", async () => (await page.locator("nav a[aria-current]").innerText()) === "Fleet");

    // All are taken, also if the connection fails between two pages: what was not saved is still there.
    await go(page, "errors");
    await until("all of them", async () => (await rows.count()) === all - 2);
    page.expects = ["Failed to load resource"];
    let takes = 0;
    await page.route("**/errors/take", (route) => (++takes === 2 ? route.abort() : route.continue()));
    await page.getByRole("button", { name: "Take all…" }).click();
    const files = [];
    page.on("download", (file) => files.push(file));
    await page.getByRole("button", { name: "Take", exact: true }).click();
    await until("all to be gone", async () => (await stored()) === 0);
    let saved = 0;
    for (const file of files) saved += readFileSync(await file.path(), "utf8").trim().split("\n").length;
    check(saved === all - 2 && takes > 2, `each was saved: ${saved} of ${all - 2}`);
    fine(page);
  },

  // Nothing can be changed on a page that may only read; the server refuses, too.
  async reader() {
    const page = await open(base);
    await page.waitForSelector("#leader");
    await until("the badge", async () => (await text(page, "#right")).includes("read-only"));
    for (const view of ["fleet", "messages", "errors", "schedule", "hub", "log"]) {
      await go(page, view);
      await page.waitForTimeout(300); // rows may still come
      const names = await page.locator("main button").allInnerTexts();
      const changing = names.filter((name) => name.endsWith("…") && name !== "Find…");
      check(changing.length === 0, `${view}: ${changing}`);
    }
    page.expects = ["403"];
    const code = await page.evaluate(async () => (await fetch("api/v1/pause", { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } })).status);
    check(code === 403, `${code}`);
    fine(page);
  },

  // A page of another site can change nothing here, whatever it tries.
  async foreign() {
    const { evil } = await act("other-site");
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(evil);
    const tried = await page.evaluate(async (base) => {
      const all = [];
      for (const options of [
        { mode: "no-cors", body: "{}" }, { mode: "no-cors", body: "{}", headers: { "Content-Type": "text/plain" } },
        { body: "{}", headers: { "Content-Type": "application/json" } }, { mode: "no-cors" },
      ]) {
        try {
          const answer = await fetch(`${base}api/v1/pause`, { method: "POST", ...options });
          all.push(answer.type);
        } catch { all.push("refused"); }
      }
      try { all.push(await (await fetch(`${base}api/v1/status`)).text()); } catch { all.push("unread"); }
      const form = document.createElement("form");
      form.method = "POST";
      form.action = `${base}api/v1/pause`;
      form.target = "_blank";
      document.body.append(form);
      form.submit();
      return all;
    }, base);
    await page.waitForTimeout(300); // the form is sent
    check(tried.at(-1) === "unread", `another site reads nothing: ${tried}`);
    check((await act("paused")).paused.length === 0, "nothing was paused");
    // In a frame, a page of that site is shown, and ours is not.
    const framed = async (url) => {
      await page.evaluate((url) => new Promise((done) => {
        const frame = document.createElement("iframe");
        frame.src = url;
        frame.onload = done;
        document.body.append(frame);
      }), url);
      return page.frames().at(-1);
    };
    const theirs = await framed(evil);
    await until("their own page to be shown", () => theirs.url() === evil);
    const ours = await framed(base);
    await until("ours to be refused", () => ours.url().startsWith("chrome-error:"));
    check((await ours.locator("#main").count()) === 0, "nothing of it is shown");
  },

  // Everything by the keyboard alone.
  async keyboard() {
    const page = await open(base);
    await page.waitForSelector("#members tbody tr");
    const press = (key) => page.keyboard.press(key);
    const title = () => page.locator("nav a[aria-current]").innerText();
    await press("Tab");
    check((await page.evaluate(() => document.activeElement.className)) === "skip", "the first stop skips to the content");
    await press("?");
    check((await text(page, "dialog")).includes("put the selected errors back"), "the keys are shown");
    await press("Escape");
    await until("it to close", async () => (await page.locator("dialog").count()) === 0);
    for (const [key, name] of [["e", "Errors"], ["s", "Schedule"], ["h", "Hub"], ["l", "Log"], ["w", "Messages"], ["f", "Fleet"]]) {
      await press(key);
      await until(name, async () => (await title()).startsWith(name));
    }
    await press("m");
    await until("a member to be in focus", () => page.evaluate(() => document.activeElement.nodeName === "TR"));
    await press("j");
    await press("Enter");
    await until("its details", async () => (await page.locator("dialog[open]").count()) === 1);
    await press("Escape");
    await press("t");
    await until("the numbers behind the lines", async () => (await text(page, "dialog")).includes("done / s"));
    await press("Escape");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    const first = await theme();
    await press("d");
    check((await theme()) !== first, "the theme");
    await press("d");

    // Select two of the failed messages, and put them back.
    await press("e");
    await page.waitForSelector("main tbody tr input[type=checkbox]");
    const { done } = await act("done");
    await press("j");
    await press("x");
    await press("j");
    await press("x");
    await until("two to be selected", async () => (await page.locator("tr.chosen").count()) === 2);
    await press("r");
    await until("the question", async () => (await page.locator("dialog[open]").count()) === 1);
    await press("Enter");
    await until("both to run again", async () => (await act("done")).done >= done + 2);
    await press("/");
    await page.keyboard.type("jkxr");
    check((await page.evaluate(() => document.activeElement.value)) === "jkxr", "keys are dead while somebody types");
    await press("Enter");
    await until("the search", async () => page.url().includes("q=jkxr"));
    await press("Escape");
    await press("f");

    // A lane is paused and resumed by buttons that are reached by Tab.
    await until("the fleet", async () => (await title()) === "Fleet");
    await page.locator("button[aria-label='pause low']").focus();
    await press("Enter");
    await until("the question", async () => (await page.locator("dialog[open]").count()) === 1);
    await press("Enter");
    await until("it to be paused", async () => (await act("paused")).paused.includes("low"));
    await until("the page to know", async () => (await whole(page)).includes("Paused: low."));
    await page.locator("button[aria-label='resume low']").focus();
    await press("Enter");
    await until("the question", async () => (await page.locator("dialog[open]").count()) === 1);
    await press("Enter");
    await until("it to go on", async () => (await act("paused")).paused.length === 0);
    fine(page);
  },

  // A tab that stays open does not grow.
  async memory() {
    const page = await open(base);
    await page.waitForSelector("#leader");
    const cdp = await page.context().newCDPSession(page);
    const used = async () => {
      await cdp.send("HeapProfiler.collectGarbage");
      return (await cdp.send("Runtime.getHeapUsage")).usedSize / (1 << 20);
    };
    const walk = async () => {
      for (const view of ["messages", "errors", "schedule", "hub", "log", "fleet"]) {
        await go(page, view);
        await page.waitForTimeout(500); // it is used, for as long as the test lasts
      }
    };
    await walk();
    await walk();
    const { minutes } = await act("minutes");
    const [begun, first, all] = [Date.now(), await used(), []];
    do {
      await walk();
      all.push(await used());
    } while (Date.now() - begun < minutes * 60000);
    const last = all.at(-1);
    console.log(`${first.toFixed(1)} MiB at first, ${last.toFixed(1)} MiB after ${((Date.now() - begun) / 60000).toFixed(1)} minutes, ${Math.max(...all).toFixed(1)} MiB at most`);
    check(last < first * 1.3 + 2, "it does not grow");
    fine(page);
  },

  // Every view in both themes and two widths: no fault of accessibility, nothing beside the screen. The pictures are kept.
  async looks() {
    mkdirSync(pictures, { recursive: true });
    for (const [width, theme] of [[1280, "light"], [1280, "dark"], [360, "light"], [360, "dark"]]) {
      const page = await open(base, { viewport: { width, height: 900 }, colorScheme: theme, bypassCSP: true, reducedMotion: "reduce" });
      await page.waitForSelector("#leader");
      await page.addScriptTag({ content: axe });
      for (const view of ["fleet", "messages?state=waiting&lane=low", "messages?state=scheduled", "errors", "schedule", "hub", "log"]) {
        await go(page, view);
        await until(`${view} to be there`, async () => !(await whole(page)).includes("Loading"));
        await page.waitForTimeout(300); // rows may still come
        const name = view.replace(/\?state=/, "-").replace(/&.*/, "");
        const found = await page.evaluate(async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
          .map((one) => `${one.id}: ${one.help}: ${one.nodes.map((node) => `${node.target} ${node.any?.[0]?.message ?? ""}`).slice(0, 5).join(" | ")}`));
        check(found.length === 0, `${view} at ${width}, ${theme}: ${found.join("\n")}`);
        const beside = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        check(beside <= 0, `${view} at ${width}: ${beside} pixels stand beside the screen`);
        await page.screenshot({ path: join(pictures, `${name}-${width}-${theme}.png`), fullPage: width === 360 });
      }
      await go(page, "errors");
      await page.locator("main tbody tr").first().click();
      const found = await page.evaluate(async () => (await axe.run("dialog", { resultTypes: ["violations"] })).violations.map((one) => one.help));
      check(found.length === 0, `a dialog at ${width}, ${theme}: ${found}`);
      await page.screenshot({ path: join(pictures, `dialog-${width}-${theme}.png`) });
      fine(page);
      await page.context().close();
    }
  },
};

try {
  await scenarios[scenario]();
  console.log("DONE");
} catch (error) {
  console.log(`FAILED ${error.stack}`);
  process.exitCode = 1;
} finally {
  await browser.close();
  process.exit();
}
