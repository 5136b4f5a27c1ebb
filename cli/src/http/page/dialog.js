// Questions, details, and what became of an action.

import { h, say } from "./dom.js";

const toasts = h("div", { class: "toasts" });
document.body.append(toasts);

export function toast(text, bad = false) {
  const node = h("div", { class: bad ? "toast bad" : "toast" }, text);
  toasts.append(node);
  say(text);
  setTimeout(() => node.remove(), bad ? 9000 : 5000);
}

// Shows a dialog; what it returns is what was chosen, or null.
export function show(title, body, buttons, { focus } = {}) {
  return new Promise((done) => {
    const name = `d${Math.random().toString(36).slice(2)}`;
    let chosen = null;
    const end = (value) => { chosen = value; node.close(); };
    const row = buttons.map(([label, kind, value]) =>
      h("button", { type: "button", class: kind, onclick: async () => {
        const answer = typeof value === "function" ? await value() : value;
        if (answer !== undefined) end(answer);
      } }, label));
    const node = h("dialog", { "aria-labelledby": name, onclose: () => { node.remove(); done(chosen); } },
      h("h2", { id: name }, title), body, h("div", { class: "row" }, row));
    node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.nodeName === "INPUT") row.at(-1).click();
    });
    document.body.append(node);
    node.showModal();
    (focus ?? row.at(-1)).focus();
  });
}

// Asks before something is done, does it, and tells what became of it.
export async function confirm(title, text, label, act, { harm = false } = {}) {
  const yes = await show(title, h("p", {}, text), [["Cancel", "", null], [label, harm ? "harm" : "go", true]]);
  return yes ? perform(act) : null;
}

export async function perform(act) {
  try {
    const text = await act();
    if (text) toast(text);
    return true;
  } catch (error) {
    toast(error.hint ? `${error.message}. ${error.hint}` : error.message, true);
    return false;
  }
}

export const details = (title, ...body) => show(title, body, [["Close", "go", true]]);

export function facts(pairs) {
  return h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
