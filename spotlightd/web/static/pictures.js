// Held-out pictures by prompt and seed, before and after; a picture opens its trajectory.

import { $, ask, facts, make, short } from "./dom.js";

const PROMPTS = 8;
let offset = 0, total = 0;

export async function grid() {
  const version = $("grid-version").value;
  const chosen = version ? `&after=${version}` : "";
  const answer = await ask(`/v1/grid?offset=${offset}&limit=${PROMPTS}${chosen}`);
  total = answer.prompts;
  options(answer);
  const head = make("tr", {}, make("th", { scope: "col" }, "prompt"),
    make("th", { scope: "col" }, `version ${answer.before}`), make("th", { scope: "col" }, `version ${answer.after}`));
  const rows = answer.rows.map((row) => make("tr", {},
    make("th", { scope: "row", title: row.prompt }, row.target || row.prompt_id),
    make("td", {}, cells(row, row.before, answer.before)), make("td", {}, cells(row, row.after, answer.after))));
  $("grid").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  const last = Math.min(offset + PROMPTS, total);
  $("grid-where").textContent = total ? `prompts ${offset + 1} to ${last} of ${total}` : "nothing was evaluated yet";
  $("grid-back").disabled = offset === 0;
  $("grid-more").disabled = last >= total;
}

function options(answer) {
  const select = $("grid-version"), before = select.value;
  const wanted = ["", ...answer.versions.map(String)];
  if (wanted.join() === [...select.options].map((o) => o.value).join()) return;
  select.replaceChildren(...wanted.map((v) => make("option", { value: v }, v === "" ? "newest" : `version ${v}`)));
  select.value = wanted.includes(before) ? before : "";
}

function cells(row, list, version) {
  if (!list.length) return make("span", { class: "dim" }, "–");
  return make("div", { class: "cells" }, ...list.map((cell) => {
    const name = `${row.target || row.prompt_id}, version ${version}, seed ${cell.seed}: reward ${short(cell.reward)}`;
    const image = cell.has_image
      ? make("img", { src: `/v1/samples/${encodeURIComponent(cell.request_id)}/image`, alt: "", loading: "lazy" })
      : null;
    return make("button", { class: "cell", type: "button", "aria-label": name, onclick: () => open(cell.request_id) },
      image, short(cell.reward));
  }));
}

async function open(id) {
  const path = `/v1/samples/${encodeURIComponent(id)}`;
  const sample = await ask(path);
  $("sample-h").textContent = sample.prompt;
  const image = $("sample-image");
  image.hidden = !sample.has_image;
  if (sample.has_image) image.src = `${path}/image`;
  image.alt = sample.text ? `read as ${sample.text}` : "picture without recognised text";
  const scores = Object.entries(sample.scores ?? {}).map(([name, value]) => [name, short(value)]);
  facts($("sample-facts"), [...scores, ["read", sample.text || "–"], ["seed", sample.seed],
    ["policy version", sample.policy_version], ["agent", sample.agent_id], ["GPU-seconds", short(sample.gpu_s)],
    ["resumed from step", sample.resumed_from], ["id", sample.request_id]]);
  $("sample").showModal();
}

/** Wire the section's controls; `again` draws it and reports what fails. */
export function wire(again) {
  const page = (step) => () => {
    offset = Math.max(0, Math.min(offset + step, Math.max(total - 1, 0)));
    again();
  };
  $("grid-back").addEventListener("click", page(-PROMPTS));
  $("grid-more").addEventListener("click", page(PROMPTS));
  $("grid-version").addEventListener("change", again);
  // Arrow keys walk over the pictures as over the cells of a sheet.
  $("grid").addEventListener("keydown", (event) => {
    const all = [...$("grid").querySelectorAll(".cell")], here = all.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (here < 0 || !step) return;
    event.preventDefault();
    all[Math.max(0, Math.min(here + step, all.length - 1))].focus();
  });
}
