// The page's module: the theme, and one stream of live figures.
// Text comes from clients, so it is only ever set as textContent.
import { draw } from "./charts.js";
import { bindPolicy } from "./policy.js";
import { bindTail } from "./tail.js";

const QUIET_MS = 5000;

function bindTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  label();
  prefersDark.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // It holds for this page.
    }
    label();
  });
}

export const count = (value) => Math.round(value).toLocaleString("en-US");
export const rate = (value) => !(value > 0) ? "0" : value < 100 ? value.toFixed(1) : count(value);
const micros = (value) => value < 1000 ? `${value} µs` : `${(value / 1000).toFixed(1)} ms`;

function bytes(value) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

function put(name, text) {
  const place = document.querySelector(`[data-figure="${name}"]`);
  if (place && place.textContent !== text) place.textContent = text;
}

export function cell(row, text, className) {
  const cell = row.insertCell();
  cell.className = className ?? "";
  cell.textContent = text;
  return cell;
}

export function linkCell(row, text, path, className) {
  if (!text) return cell(row, "–");
  const link = document.createElement("a");
  link.href = path + encodeURIComponent(text);
  link.textContent = text;
  cell(row, "", className).append(link);
}

// A text that is not the key itself: the same as `is_doubtful` in Rust.
const DOUBT = /…[0-9a-f]{12}$|\ufffd|%20|%0D|%0A|[\0-\x1f\x7f]/;

export function keyCell(row, text) {
  const isHashed = "hashed" in row.parentElement.dataset;
  if (!isHashed && !DOUBT.test(text)) return linkCell(row, text, "/ui/key?key=", "code");
  cell(row, text, "code");
}

// A polite region speaks at most once in five seconds.
let spokenAt = 0;
export function speak(text) {
  const place = document.getElementById("live");
  if (!place || performance.now() - spokenAt < QUIET_MS && spokenAt) return;
  spokenAt = performance.now();
  place.textContent = text;
}

function showStatus(status) {
  put("requests", rate(status.requests_per_s));
  put("denied", rate(status.denied_per_s_minute));
  put("items", count(status.items));
  put("memory", bytes(status.memory_used_bytes));
  put("connections", count(status.connections));
  const meter = document.querySelector("meter");
  if (meter) meter.value = 100 * status.memory_used_bytes / Math.max(1, status.memory_limit_bytes);
  showFaults(status.faults);
  const faults = status.faults.length ? `, ${status.faults.length} faults` : "";
  speak(`live: ${rate(status.requests_per_s)} requests a second${faults}`);
}

function showFaults(faults) {
  const place = document.querySelector("[data-faults]");
  const text = faults.map((fault) => `✕ ${fault}`).join("\n") || "✓ No fault is known.";
  if (place.textContent.trim() === text) return;
  place.textContent = text;
  place.className = `faults mark ${faults.length ? "bad" : "good"}`;
}

function showRates({ allowed, denied }) {
  draw("rates", { allowed, denied }, rate, (ago) => ago ? `${ago * 10} s ago` : "now");
}

function showLatency(latency) {
  put("p50", micros(latency.p50_us));
  put("p99", micros(latency.p99_us));
}

function showDenied(hot) {
  const body = document.querySelector("[data-hot]");
  // A key that has the focus stays: the rows are drawn again when it has lost it.
  if (!body || body.contains(document.activeElement)) return;
  body.replaceChildren();
  for (const key of hot.keys.slice(0, 5)) {
    const row = body.insertRow();
    keyCell(row, key.key);
    linkCell(row, key.limit, "/ui/limit?name=");
    cell(row, rate(key.rate), "n");
    cell(row, rate(key.rate_at_least), "n");
  }
  if (!hot.keys.length) cell(body.insertRow(), "None in the last minute.", "quiet").colSpan = 4;
}

// One stream a page, closed while it is hidden.
export function follow(path, handlers) {
  let source;
  const open = () => {
    source = new EventSource(path);
    for (const [name, show] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => show(event.data && JSON.parse(event.data)));
    }
    source.addEventListener("error", () => speak("not live: the server does not answer"));
  };
  const change = () => {
    source?.close();
    if (!document.hidden) open();
  };
  document.addEventListener("visibilitychange", change);
  change();
}

bindTheme();
bindPolicy();
const topics = document.getElementById("main").dataset.live;
if (topics === "tail") {
  bindTail();
} else if (topics) {
  follow(`/api/v1/live?topics=${topics}`, {
    status: showStatus,
    rates: showRates,
    latency: showLatency,
    denied: showDenied,
  });
}
