// Line charts: the server draws them first, and this draws new numbers into the same SVG.
import { cell } from "./app.js";

const WIDTH = 600;
const HEIGHT = 120;

function points(values, top) {
  const step = WIDTH / (Math.max(values.length, 2) - 1);
  return values.map((value, index) => {
    const share = Math.min(Math.max(value / top, 0), 1);
    return `${(index * step).toFixed(1)},${(HEIGHT - share * (HEIGHT - 2) - 1).toFixed(1)}`;
  }).join(" ");
}

// Draws `lines`, an object of lists, into the chart `id`. `label` names a time by its distance
// from the newest value.
export function draw(id, lines, print, label) {
  const chart = document.querySelector(`[data-chart="${id}"]`);
  if (!chart) return;
  const names = Object.keys(lines);
  const length = Math.max(...names.map((name) => lines[name].length));
  const top = Math.max(1, ...names.flatMap((name) => lines[name]));
  chart.querySelector("[data-top]").textContent = print(top);
  const words = names.map((name) => {
    const last = lines[name].length ? print(lines[name].at(-1)) : "–";
    chart.querySelector(`[data-line="${name}"]`).setAttribute("points", points(lines[name], top));
    chart.querySelector(`[data-last="${name}"]`).textContent = last;
    return `${name} ${last}`;
  });
  const title = chart.querySelector("title");
  title.textContent = `${title.textContent.split(":")[0]}: ${words.join(", ")}`;
  if (!chart.querySelector("details").open) return;
  const rows = Array.from({ length }, (_, ago) => {
    const row = document.createElement("tr");
    cell(row, label(ago));
    for (const name of names) {
      const value = lines[name].at(-1 - ago);
      cell(row, value === undefined ? "–" : print(value), "n");
    }
    return row;
  });
  chart.querySelector("[data-rows]").replaceChildren(...rows);
}
