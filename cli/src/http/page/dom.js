// Elements, and changing a page into another one without losing the focus. No text ever becomes markup here.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "path", "circle", "g"]);

function listen(event) {
  const act = event.currentTarget._on?.[event.type];
  if (act) act(event);
}

function set(node, name, value) {
  if (name.startsWith("on")) {
    const type = name.slice(2);
    node._on ??= {};
    if (!(type in node._on)) node.addEventListener(type, listen);
    node._on[type] = value;
  } else if (value === false || value === null || value === undefined) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

function* flat(children) {
  for (const child of children) {
    if (Array.isArray(child)) yield* flat(child);
    else if (child !== null && child !== undefined && child !== false && child !== "") yield child;
  }
}

// An element. `props`: attributes, `on…` handlers, and `key`, by which it is known again.
export function h(tag, props, ...children) {
  const node = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "key") node._key = value;
    else set(node, name, value);
  }
  for (const child of flat(children)) {
    node.append(child instanceof Node ? child : String(child));
  }
  // What the view wants to stand in a field; what a person types or chooses stays until it wants something else.
  if (tag === "input" || tag === "select") node._wanted = tag === "select" ? node.value : String(props?.value ?? "");
  return node;
}

function alike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && a._key === b._key;
}

function copy(to, from) {
  if (to.nodeType === Node.TEXT_NODE) {
    if (to.data !== from.data) to.data = from.data;
    return;
  }
  for (const { name } of [...to.attributes]) if (name !== "style" && !from.hasAttribute(name)) to.removeAttribute(name);
  for (const { name, value } of [...from.attributes]) {
    if (name !== "style" && to.getAttribute(name) !== value) to.setAttribute(name, value);
  }
  if (from.style?.width) to.style.width = from.style.width;
  for (const [type, act] of Object.entries(from._on ?? {})) set(to, `on${type}`, act);
  if (to._on) for (const type of Object.keys(to._on)) if (!from._on?.[type]) to._on[type] = null;
  if (to.nodeName === "INPUT" && to.type === "checkbox") to.checked = from.checked;
  const typed = to.nodeName === "SELECT" ? to.value : null;
  if (to.nodeName !== "TEXTAREA") fill(to, [...from.childNodes]);
  if (to._wanted !== from._wanted) to.value = from._wanted;
  else if (typed !== null) to.value = typed;
  to._wanted = from._wanted;
}

// Makes these the children of a node; those that are there already are changed and stay.
export function fill(parent, children) {
  const wanted = [...flat(children)].map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
  const keyed = new Map();
  for (const node of parent.childNodes) if (node._key !== undefined) keyed.set(node._key, node);
  let at = parent.firstChild;
  for (const node of wanted) {
    const known = node._key !== undefined ? keyed.get(node._key) : at && at._key === undefined ? at : null;
    if (known && alike(known, node)) {
      if (known === at) at = at.nextSibling;
      else parent.insertBefore(known, at);
      copy(known, node);
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Moves a bar: a rule of styles that scripts may set.
export function width(node, share) {
  node.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return node;
}

const said = document.getElementById("say");
let last = 0;

// Tells a screen reader, at most once in two seconds.
export function say(text) {
  const now = Date.now();
  if (now - last < 2000) return;
  last = now;
  said.textContent = text;
}
