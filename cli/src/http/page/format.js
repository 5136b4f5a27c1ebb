// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

export const rate = (n) => {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  return n < 100 ? fine.format(n) : whole.format(n);
};

// A small number of milliseconds.
export const small = (ms) => (ms < 1 ? ms.toFixed(2) : rate(ms));

// A span of time, in its two largest units.
export function span(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 0) return `${span(-ms)} late`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${fine.format(ms / 1000)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const seconds = Math.floor(ms / 1000);
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[first];
  const head = Math.floor(seconds / size);
  const next = units[first + 1];
  const rest = next ? Math.floor((seconds - head * size) / next[0]) : 0;
  return rest > 0 ? `${head} ${name} ${rest} ${next[1]}` : `${head} ${name}`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1024) return `${n} B`;
  if (n < 1 << 20) return `${fine.format(n / 1024)} KiB`;
  return `${fine.format(n / (1 << 20))} MiB`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// The time today, and the day if it is another one.
export function point(ms, now = Date.now()) {
  const at = new Date(ms);
  const today = new Date(now);
  if (at.toDateString() === today.toDateString()) return clock(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

export const short = (id) => (id && id.length > 12 ? `${id.slice(0, 8)}…` : (id ?? ""));

// The payload of a row: as text, on one line for lists.
export function payload(row, line = true) {
  const text = row.payload ?? `Base64 ${row.payload_b64 ?? ""}`;
  const shown = line ? text.slice(0, 200).replace(/\s+/g, " ") : text;
  return row.payload_cut || (line && text.length > 200) ? `${shown}…` : shown;
}

// A path of a sparkline, 100 wide and 26 high.
export function spark(values, most) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return "";
  const top = Math.max(most ?? 0, ...known, 1e-9);
  const step = 100 / Math.max(values.length - 1, 1);
  let path = "";
  let pen = "M";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${(at * step).toFixed(1)} ${(25 - (value / top) * 23).toFixed(1)} `;
    pen = "L";
  });
  return path.trim();
}
