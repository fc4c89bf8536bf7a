// Line charts as SVG. A series is {name, points: [[x, mean, least, most], ...], dots}.

import { make, short } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 240, LEFT = 58, RIGHT = 12, TOP = 12, BOTTOM = 26;
const COLOURS = 6;

function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Draw into a <figure>. `label` turns an x into text. */
export function chart(figure, title, note, series, { fromZero = false, label = (x) => Math.round(x) } = {}) {
  const drawn = series.filter((s) => s.points.length);
  const caption = make("figcaption", {}, make("b", {}, `${title}. `), note);
  if (!drawn.length) {
    figure.replaceChildren(caption, make("p", { class: "dim" }, "not measured yet"));
    return;
  }
  const xs = drawn.flatMap((s) => s.points.map((p) => p[0]));
  const ys = drawn.flatMap((s) => s.points.flatMap((p) => [p[2], p[3]]));
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1e-9);
  const y0 = fromZero ? Math.min(0, ...ys) : Math.min(...ys), y1 = Math.max(...ys, y0 + 1e-9);
  const x = (value) => LEFT + ((value - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const last = drawn.map((s) => `${s.name} ${short(s.points.at(-1)[1])}`).join(", ");
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: now ${last}` });
  for (let i = 0; i <= 4; i++) {
    const value = y0 + (i / 4) * (y1 - y0), at = x0 + (i / 4) * (x1 - x0);
    svg.append(
      shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      shape("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
      shape("text", { x: x(at), y: HEIGHT - 6, "text-anchor": i === 4 ? "end" : "middle" }, label(at)),
    );
  }
  drawn.forEach((s, number) => svg.append(...curve(s, `s${number % COLOURS}`, x, y)));
  const legend = make("div", { class: "legend" },
    ...drawn.map((s, n) => make("span", { class: `s${n % COLOURS}` }, make("i"), `${s.name} ${short(s.points.at(-1)[1])}`)));
  figure.replaceChildren(caption, svg, legend);
}

function curve(series, colour, x, y) {
  const points = series.points;
  if (series.dots || points.length === 1) {
    return points.map((p) => shape("circle", { class: colour, cx: x(p[0]), cy: y(p[1]), r: 4 }));
  }
  const shapes = [];
  if (points.some((p) => p[2] !== p[3])) {
    const upper = points.map((p) => `${x(p[0])},${y(p[3])}`);
    const lower = points.map((p) => `${x(p[0])},${y(p[2])}`).reverse();
    shapes.push(shape("polygon", { class: `${colour} band`, points: [...upper, ...lower].join(" ") }));
  }
  shapes.push(shape("polyline", { class: colour, points: points.map((p) => `${x(p[0])},${y(p[1])}`).join(" ") }));
  return shapes;
}
