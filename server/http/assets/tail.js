// The tail: events as they come, newest first, with filter and pause.
import { cell, count, follow, keyCell, linkCell, speak } from "./app.js";

const ROWS_MAX = 500;

function span(ms) {
  return ms < 1000 ? `${ms} ms` : `${count(ms / 1000)} s`;
}

export function bindTail() {
  const body = document.querySelector("[data-tail]");
  const form = document.querySelector("[data-tail-filter]");
  const filter = form.elements;
  const pause = document.getElementById("pause");
  let isPaused = false;
  let seen = 0;

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
  });

  function show(event) {
    seen += event.weight;
    speak(`live: ${count(seen)} events`);
    const isOther = (name, value) => ![value, ""].includes(filter[name].value);
    if (isPaused || isOther("what", event.kind) || isOther("limit", event.limit)) return;
    if (!event.key.startsWith(filter.prefix.value)) return;
    const row = body.insertRow(0);
    cell(row, event.at.replace(/\.\d+Z/, "Z"));
    cell(row, event.kind);
    if (event.kind === "limit-changed") linkCell(row, event.key, "/ui/limit?name=", "code");
    else if (event.kind === "node") cell(row, event.key, "code");
    else keyCell(row, event.key);
    linkCell(row, event.limit, "/ui/limit?name=");
    cell(row, count(event.cost), "n");
    cell(row, event.retry_ms === null ? "–" : span(event.retry_ms), "n");
    cell(row, count(event.weight), "n");
    while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
  }

  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  follow(`/api/v1/tail?${query}`, {
    // A stream begins with the last events, which the page may show already.
    open: () => isPaused || body.replaceChildren(),
    denied: show, shadow: show, "limit-changed": show, node: show,
    lost: ({ events }) => speak(`${count(events)} events were lost: too many at once`),
  });
}
