// The dashboard: what the daemon tells once a second, and what is asked for when it may have changed.
//
//   /v1/stream --status--> header; an iteration, phase or evaluation that is new --> its sections
//              --happened--> the list of events
//
// Nothing is loaded from anywhere else. Sections are asked for one by one: a slow one holds up none.

import { $, ask, clock, count, duration, facts, make, money, short } from "./dom.js";
import { chart } from "./chart.js";
import * as fleet from "./fleet.js";
import * as pictures from "./pictures.js";

const EVENTS_SHOWN = 200, STRIPS_EVERY_MS = 5000, POINTS = 300;

let run = null;
let seen = { iteration: -1, phase: "", evaluations: -1 }, lastEvent = 0, stripsAt = 0;
const busy = new Set();

/** Draw a section unless it is being drawn already; what fails is said in the header. */
async function draw(name, work) {
  if (busy.has(name)) return;
  busy.add(name);
  try {
    await work();
  } catch (error) {
    $("live").textContent = `${name}: ${error.message}`;
  } finally {
    busy.delete(name);
  }
}

function header(status) {
  document.title = `${status.run || status.run_state} ${status.iteration}/${status.iterations} – Spotlight`;
  $("run").textContent = status.run;
  $("state").textContent = status.run_state === "running" ? status.phase : status.run_state;
  const share = status.iterations ? status.iteration / status.iterations : 1;
  const progress = $("progress");
  progress.setAttribute("aria-valuenow", share.toFixed(3));
  progress.setAttribute("aria-valuetext", `iteration ${status.iteration} of ${status.iterations}`);
  progress.firstElementChild.style.width = `${100 * share}%`;
  const done = Object.values(status.requests).reduce((sum, states) => sum + (states.done ?? 0), 0);
  const here = ["live", "suspect", "draining"].reduce((sum, state) => sum + (status.agents[state] ?? 0), 0);
  const cost = status.cost, held = status.reward.held_out;
  const train = $("chart-reward").dataset.train;
  facts($("facts"), [
    ["iteration", `${count(status.iteration)} of ${count(status.iterations)}`],
    ["policy version", count(status.policy_version)],
    ["reward, random seeds", status.reward.control_mean === null ? "–" : short(status.reward.control_mean)],
    ["held out", held.length && train ? held.map((p) => short(p.scores[train] ?? NaN)).filter((_, i, all) => i === 0 || i === all.length - 1).join(" → ") : "–"],
    ["agents", here],
    ["trajectories", count(done)],
    ["lost", status.lost],
    ["spent", `${money(cost.reserved + cost.spot)} ${cost.currency}`],
    ["all on demand", `${money(cost.all_reserved)} ${cost.currency}`],
    ["up", duration(status.uptime_s)],
  ]);
}

async function curves() {
  const names = "control.*,held_out.*,planner.*,log_prob_difference.*,train.clip_range,rollout.*";
  const answer = await ask(`/v1/curves?names=${encodeURIComponent(names)}&points=${POINTS}`);
  const by = new Map(answer.curves.map((c) => [c.name, c.points]));
  const series = (name, title, dots = false) => ({ name: title, points: by.get(name) ?? [], dots });
  const train = $("chart-reward").dataset.train;
  chart($("chart-reward"), `Training reward (${train})`, "random control seeds, and held-out prompts", [
    series(`control.${train}`, "control seeds"), series(`held_out.${train}`, "held out", true),
    series(`rollout.${train}`, "groups that train"),
  ]);
  const others = [...by.keys()].filter((n) => n.startsWith("control.") && n !== `control.${train}`);
  chart($("chart-others"), "What does not train", "falling here while the reward rises is a hacked reward",
    others.flatMap((n) => [series(n, n.slice(8)), series(`held_out.${n.slice(8)}`, `${n.slice(8)}, held out`, true)]));
  chart($("chart-rho"), "Rank fidelity", "how well scores from exploration predict regenerated rewards", [
    series("planner.rho", "belief"), series("planner.rho_error", "its error")]);
  chart($("chart-gain"), "Variance of the groups that train", "over that of random seeds; 1 is no gain", [
    series("planner.gain", "gain"), series("planner.candidates", "seeds per prompt")].slice(0, 1));
  chart($("chart-spread"), "Groups without spread", "share of groups whose rewards are all equal", [
    series("planner.zero_spread_share", "share")], { fromZero: true });
  const ratios = [...by.keys()].filter((n) => n.startsWith("log_prob_difference."));
  chart($("chart-ratio"), "Log-prob, producer against trainer", "before the update; must stay far below the clip range",
    [...ratios.slice(0, 5).map((n) => series(n, n.slice(20))), series("train.clip_range", "clip range")], { fromZero: true });
}

async function plan() {
  const answer = await ask("/v1/plan");
  $("plan-words").textContent = `Mode ${answer.mode}, iteration ${answer.iteration}: ${answer.reason}. ` +
    `${answer.windows_kept} explorations were complete when training ended, ${answer.windows_overrun} were cut off.`;
}

async function alarms() {
  const found = await ask("/v1/alarms");
  $("alarm-list").replaceChildren(...(found.length
    ? found.map((a) => make("li", { class: `alarm ${a.severity}` }, make("b", {}, `${a.name.replaceAll("_", " ")}: `), a.text))
    : [make("li", { class: "dim" }, "none: groups have spread, ratios fit, no sign of a hacked reward")]));
}

function happened(row) {
  lastEvent = Math.max(lastEvent, row.event_id);
  const list = $("event-list");
  const at = make("time", { datetime: new Date(1000 * row.time).toISOString() }, clock(row.time));
  list.prepend(make("li", { class: row.level }, at, `${row.component}: ${row.text}`));
  while (list.children.length > EVENTS_SHOWN) list.lastElementChild.remove();
}

function show(status) {
  // Another run has other pictures, curves and events, from the first on.
  if (run !== null && run !== status.run) location.reload();
  run = status.run;
  header(status);
  const now = { iteration: status.iteration, phase: status.phase, evaluations: status.reward.held_out.length };
  if (now.iteration !== seen.iteration || now.phase !== seen.phase) {
    draw("curves", curves);
    draw("plan", plan);
    draw("alarms", alarms);
  }
  if (now.evaluations !== seen.evaluations) draw("pictures", pictures.grid);
  if (Date.now() - stripsAt > STRIPS_EVERY_MS) {
    stripsAt = Date.now();
    draw("fleet", fleet.strips);
    draw("agents", fleet.agents);
    draw("spending", fleet.spending);
  }
  seen = now;
}

function follow() {
  const stream = new EventSource(`/v1/stream?after=${lastEvent}`);
  stream.addEventListener("status", (event) => {
    $("live").textContent = `live, ${new Date().toLocaleTimeString("en-GB")}`;
    show(JSON.parse(event.data));
  });
  stream.addEventListener("happened", (event) => happened(JSON.parse(event.data)));
  stream.addEventListener("error", () => {
    $("live").textContent = "the daemon does not answer: trying again";
  });
}

async function start() {
  fleet.legend();
  pictures.wire(() => draw("pictures", pictures.grid));
  $("strip-span").addEventListener("change", () => draw("fleet", fleet.strips));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw("fleet", fleet.strips));
  const status = await ask("/v1/status");
  $("chart-reward").dataset.train = status.train_reward;
  show(status);
  lastEvent = Math.max(0, status.last_event - EVENTS_SHOWN);
  follow();
}

draw("start", start);
