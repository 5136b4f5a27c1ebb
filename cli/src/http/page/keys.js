// The keyboard: keys of the page and of the view, and moving through rows. They are dead while somebody types.

const types = (node) => ["INPUT", "TEXTAREA", "SELECT"].includes(node.nodeName) || node.isContentEditable;

function rows() {
  return [...document.querySelectorAll("main tbody tr[tabindex]")];
}

function step(by) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.indexOf(document.activeElement.closest("tr"));
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by));
  all[next].focus();
}

export function bind(page, view) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape" && types(event.target)) event.target.blur();
    if (types(event.target) && event.target.type !== "checkbox") return;
    if (document.querySelector("dialog[open]")) return;
    const own = view();
    const acts = {
      j: () => step(1),
      k: () => step(-1),
      "/": () => document.querySelector("main input[type=search]")?.focus(),
      x: () => document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
      ...page,
      ...own,
    };
    const onRow = event.target.nodeName === "TR";
    if (event.key === "Enter" && onRow) {
      event.preventDefault();
      event.target.click();
    } else if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    }
  });
}
