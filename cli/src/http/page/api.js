// Asking the API: in the name of the token that this tab knows.

const BASE = new URL("api/v1/", document.baseURI);
const TOKEN = "artel-token";

let fleet = null;
let wanted = null; // asks for a token

export class Refused extends Error {
  constructor(status, { error, hint }) {
    super(error ?? `the answer was ${status}`);
    this.status = status;
    this.hint = hint;
  }
}

export const chosen = () => fleet;
export const choose = (name) => { fleet = name; };
export const onToken = (ask) => { wanted = ask; };
export const keep = (token) => sessionStorage.setItem(TOKEN, token);

export function address(path, params = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries({ fleet, ...params })) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

export function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

// Asks, and asks again once a token is known.
export async function ask(path, { params, signal, method = "GET", body, more } = {}) {
  const options = { method, signal, headers: headers(more), credentials: "omit", redirect: "error" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer = await fetch(address(path, params), options);
  // It asked for too much at once, and nothing was done: a little later.
  for (let tries = 0; answer.status === 429 && tries < 20; tries++) {
    await new Promise((done) => setTimeout(done, 1000));
    answer = await fetch(address(path, params), options);
  }
  if (answer.status === 401 && wanted && (await wanted())) return ask(path, { params, signal, method, body, more });
  if (!answer.ok) {
    let problem = {};
    try { problem = await answer.json(); } catch { /* it is no document */ }
    throw new Refused(answer.status, problem);
  }
  return answer;
}

export const get = async (path, params, signal) => (await ask(path, { params, signal })).json();
export const post = async (path, body = {}, params = {}) => (await ask(path, { method: "POST", body, params })).json();

const part = encodeURIComponent;
export const within = (path, ...parts) => parts.reduce((all, one) => all.replace("*", part(one)), path);

// Hands a file to the person.
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

export async function download(path, params, name) {
  save(await (await ask(path, { params })).blob(), name);
}
