// The fleet: a strip per agent over time, the table of agents, and what it all costs.

import { $, ask, clock, duration, make, money, percent } from "./dom.js";
import { chart } from "./chart.js";

const CLASSES = ["useful", "wasted", "loading", "idle"];
const SLOTS = 240, AGENTS = 50;

export function legend() {
  $("strip-legend").replaceChildren(
    ...[...CLASSES, "preempted"].map((name) => make("span", {}, make("i", { class: name }), name)),
  );
}

export async function strips() {
  const seconds = $("strip-span").value;
  const answer = await ask(`/v1/strips?seconds=${seconds}&slots=${SLOTS}&agents=${AGENTS}`);
  const colours = colourTable();
  const rows = answer.strips.map((strip) => {
    const canvas = make("canvas", { width: SLOTS, height: 20, role: "img", "aria-label": words(strip) });
    paint(canvas, strip.cells, colours);
    return make("div", { class: "strip" }, make("span", { title: strip.agent_id }, strip.name), canvas);
  });
  const more = answer.agents - answer.strips.length;
  const until = answer.since + answer.slots * answer.slot_s;
  const note = rows.length
    ? `${clock(answer.since)} to ${clock(until)}${more > 0 ? `; ${more} more agents are not shown` : ""}`
    : "nobody has worked yet";
  $("strips").replaceChildren(...rows, make("p", { class: "dim" }, note));
}

function colourTable() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries([...CLASSES, "preempted"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

/** Stack the shares of each slice; a slice that ended with a notice is striped in its colour. */
function paint(canvas, cells, colours) {
  const context = canvas.getContext("2d");
  for (const cell of cells) {
    let top = canvas.height;
    for (const name of CLASSES) {
      const height = cell[name] * canvas.height;
      context.fillStyle = colours[name];
      context.fillRect(cell.slot, top - height, 1, height);
      top -= height;
    }
    if (cell.state === "preempted" || cell.state === "lost") {
      context.fillStyle = colours.preempted;
      context.fillRect(cell.slot, 0, 1, canvas.height);
    }
  }
}

function words(strip) {
  const total = Object.fromEntries(CLASSES.map((name) => [name, 0]));
  for (const cell of strip.cells) for (const name of CLASSES) total[name] += cell[name] / strip.cells.length;
  const last = strip.cells.at(-1)?.state ?? "absent";
  return `${strip.name}: ${CLASSES.map((name) => `${percent(total[name])} ${name}`).join(", ")}; ${last}`;
}

export async function agents() {
  const rows = await ask("/v1/agents");
  const head = make("tr", {}, ...["agent", "state", "workers", "leases", "versions", "useful", "seen"].map(
    (name) => make("th", { scope: "col" }, name)));
  const shown = rows.slice(0, 200).map((row) => {
    const held = Object.values(row.gpu_seconds).reduce((a, b) => a + b, 0);
    const notice = row.notice_s === null ? "" : `, notice ${duration(row.notice_s)}`;
    return make("tr", {},
      make("th", { scope: "row" }, row.name), make("td", {}, row.state + notice),
      make("td", { class: "number" }, String(row.workers)), make("td", { class: "number" }, String(row.leases)),
      make("td", {}, row.versions.join(" ") || "–"),
      make("td", { class: "number" }, held ? percent((row.gpu_seconds.useful ?? 0) / held) : "–"),
      make("td", { class: "number" }, `${duration(row.last_seen_s)} ago`));
  });
  $("agents").replaceChildren(make("thead", {}, head), make("tbody", {}, ...shown));
}

export async function spending() {
  const ledger = await ask("/v1/ledger?points=200");
  const spent = ledger.reserved + ledger.spot;
  $("money-words").textContent =
    `${money(spent)} ${ledger.currency} spent (${money(ledger.reserved)} reserved, ${money(ledger.spot)} spot). ` +
    `The same GPU-hours all on demand: ${money(ledger.all_on_demand)}, so ${percent(ledger.saved_fraction)} saved.`;
  const series = (name, value) => ({
    name, points: ledger.spending.map((p) => [p.time, value(p), value(p), value(p)]),
  });
  chart($("chart-money"), "Money", `in ${ledger.currency}, since the beginning`, [
    series("spent", (p) => p.reserved + p.spot),
    series("of it reserved", (p) => p.reserved),
    series("all on demand", (p) => p.all_on_demand),
  ], { fromZero: true, label: clock });
}
