// Small helpers: elements by id, elements with children, numbers and times as text.

export const $ = (id) => document.getElementById(id);

/** Return a new element. Text is set as text, never as HTML: prompts and names are anybody's. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Fill a <dl class="facts"> with [label, value] pairs. */
export function facts(list, pairs) {
  list.replaceChildren(
    ...pairs.map(([label, value]) => make("div", {}, make("dt", {}, label), make("dd", {}, String(value)))),
  );
}

export async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `${path}: ${answer.status}`);
  return body;
}

export const count = (n) => n.toLocaleString("en");
export const percent = (share) => `${Math.round(100 * share)} %`;
export const money = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** Return a number with three significant digits. */
export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1000 || size < 0.001 ? value.toExponential(1) : String(+value.toPrecision(3));
}

export function duration(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");
