// Curves over time, drawn as SVG. Owns scales, axes, the readout under the pointer, and the same numbers as a table.

import { element, setAttribute, setText, svg } from "./dom.js";

const HEIGHT = 150;
const LEFT = 60;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 22;
const WIDTH_MIN = 220;
const TABLE_ROWS = 12;

/** The smallest of 1, 2, 5 × a power of ten (of two, for bytes) that is at least `value`. */
function niceMax(value, base) {
  if (!(value > 0)) return 1;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  const steps = base === 10 ? [1, 2, 5, 10] : [1, 2];
  return power * steps.find((step) => step * power >= value * 0.999_999);
}

/**
 * One chart. `series`: [{name, label, tier, dashed}]; points: [{t, values: {name: number or null}}], oldest first.
 * With `stacked` the values of a point lie on top of each other. `max` fixes the top of the scale, `base` is what it is
 * rounded to and `topMin` the least it may be; `format` writes a value.
 */
export class Chart {
  #points = [];
  #hover = null;

  constructor(place, { title, series, format, stacked = false, max = null, topMin = 0, base = 10, note = "" }) {
    Object.assign(this, { title, series, format, stacked, max, topMin, base });
    this.width = WIDTH_MIN;
    this.readout = element("span", { class: "readout" });
    this.image = svg("svg", { role: "img", class: "chart", height: HEIGHT, "aria-label": title });
    this.grid = svg("g", { class: "grid" });
    this.curves = svg("g", {});
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.image.append(this.grid, this.curves, this.cursor);
    this.now = new Map();
    this.table = element("table", { class: "small" });
    this.details = element("details", {}, element("summary", {}, "As a table"), this.table);
    this.details.addEventListener("toggle", () => this.#fillTable());
    const heading = element("figcaption", {}, element("h3", {}, title), this.readout);
    place.append(
      element("figure", { class: "panel" }, heading, this.image, this.#legend(), this.#note(note), this.details),
    );
    this.image.addEventListener("pointermove", (event) => this.#point(event));
    this.image.addEventListener("pointerleave", () => this.#point(null));
    new ResizeObserver(() => this.#resize()).observe(this.image);
  }

  show(points, seconds) {
    this.#points = points;
    this.seconds = seconds;
    this.#draw();
    if (this.details.open) this.#fillTable();
  }

  #note(text) {
    return text ? element("p", { class: "note" }, text) : null;
  }

  #legend() {
    const items = this.series.map((each) => {
      const value = element("span", { class: "numeric" });
      this.now.set(each.name, value);
      const sample = svg("svg", { class: `sample ${classOf(each)}`, width: 18, height: 10, "aria-hidden": "true" });
      sample.append(svg("line", { x1: 1, x2: 17, y1: 5, y2: 5, class: "curve" }));
      return element("li", {}, sample, element("span", {}, each.label), value);
    });
    return element("ul", { class: "legend" }, ...items);
  }

  #resize() {
    const width = Math.max(WIDTH_MIN, Math.round(this.image.getBoundingClientRect().width));
    if (width === this.width) return;
    this.width = width;
    this.#draw();
  }

  #x(at) {
    const steps = Math.max(1, this.#points.length - 1);
    return LEFT + ((this.width - LEFT - RIGHT) * at) / steps;
  }

  #y(value, top) {
    return HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * Math.min(value, top)) / top;
  }

  #top() {
    if (this.max !== null) return this.max;
    const sums = this.#points.map(({ values }) => {
      const given = this.series.map(({ name }) => values[name] ?? 0);
      return this.stacked ? given.reduce((sum, value) => sum + value, 0) : Math.max(0, ...given);
    });
    return niceMax(Math.max(this.topMin, ...sums), this.base);
  }

  #draw() {
    const top = this.#top();
    setAttribute(this.image, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.#drawGrid(top);
    const floors = this.#points.map(() => 0);
    const shapes = this.series.map((each) => (this.stacked ? this.#bars(each, top, floors) : this.#curve(each, top)));
    this.curves.replaceChildren(...shapes);
    const said = this.series.map((each) => `${each.label} ${this.format(this.#latest(each.name))}`);
    setAttribute(this.image, "aria-label", `${this.title}: now ${said.join(", ")}`);
    for (const each of this.series) {
      const value = this.#hover === null ? this.#latest(each.name) : this.#points[this.#hover]?.values[each.name];
      setText(this.now.get(each.name), this.format(value));
    }
    setText(this.readout, this.#hover === null ? "" : `${this.#ago(this.#hover)} ago`);
  }

  #latest(name) {
    return this.#points.findLast(({ values }) => values[name] != null)?.values[name] ?? null;
  }

  #drawGrid(top) {
    const lines = [];
    for (const share of [0, 0.5, 1]) {
      const y = this.#y(top * share, top);
      lines.push(svg("line", { x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y, class: share === 0 ? "floor" : null }));
      lines.push(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, short(this.format(top * share))));
    }
    const minutes = (this.seconds ?? 60) / 60;
    const names = [`${minutes} min ago`, "", "now"];
    [0, 0.5, 1].forEach((share, at) => {
      const x = LEFT + (this.width - LEFT - RIGHT) * share;
      const anchor = ["start", "middle", "end"][at];
      lines.push(svg("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, names[at]));
    });
    this.grid.replaceChildren(...lines);
  }

  #curve(each, top) {
    let path = "";
    let drawing = false;
    this.#points.forEach(({ values }, at) => {
      const value = values[each.name];
      if (value == null) drawing = false;
      else {
        path += `${drawing ? "L" : "M"}${this.#x(at).toFixed(1)} ${this.#y(value, top).toFixed(1)}`;
        drawing = true;
      }
    });
    return svg("path", { d: path, class: `curve ${classOf(each)}` });
  }

  /** A bar for each step, on top of `floors`, which it raises; none where nothing is known. */
  #bars(each, top, floors) {
    const width = (this.width - LEFT - RIGHT) / this.#points.length;
    let path = "";
    this.#points.forEach(({ values }, at) => {
      const value = values[each.name];
      if (!value) return;
      const [left, right] = [LEFT + width * at, LEFT + width * (at + 1)].map((x) => x.toFixed(1));
      const low = this.#y(floors[at], top).toFixed(1);
      floors[at] += value;
      path += `M${left} ${low}H${right}V${this.#y(floors[at], top).toFixed(1)}H${left}Z`;
    });
    return svg("path", { d: path, class: `bars ${classOf(each)}` });
  }

  #ago(at) {
    const seconds = ((this.#points.length - 1 - at) * this.seconds) / Math.max(1, this.#points.length);
    return seconds < 90 ? `${Math.round(seconds)} s` : `${(seconds / 60).toFixed(1)} min`;
  }

  #point(event) {
    this.#hover = null;
    if (event && this.#points.length > 1) {
      const box = this.image.getBoundingClientRect();
      const x = ((event.clientX - box.left) * this.width) / box.width;
      const share = (x - LEFT) / (this.width - LEFT - RIGHT);
      this.#hover = Math.round(Math.min(1, Math.max(0, share)) * (this.#points.length - 1));
      const at = this.#x(this.#hover);
      setAttribute(this.cursor, "x1", at);
      setAttribute(this.cursor, "x2", at);
    }
    setAttribute(this.cursor, "visibility", this.#hover === null ? "hidden" : "visible");
    this.#draw();
  }

  /** The newest first, each row the mean of the points it stands for. */
  #fillTable() {
    const stride = Math.max(1, Math.ceil(this.#points.length / TABLE_ROWS));
    const heads = ["Ago", ...this.series.map(({ label }) => label)].map((text) =>
      element("th", { scope: "col" }, text),
    );
    const rows = [];
    for (let end = this.#points.length; end > 0; end -= stride) {
      const points = this.#points.slice(Math.max(0, end - stride), end);
      const means = this.series.map(({ name }) => mean(points.map(({ values }) => values[name])));
      const cells = means.map((value) => element("td", { class: "numeric" }, this.format(value)));
      rows.push(element("tr", {}, element("th", { scope: "row" }, this.#ago(end - 1)), ...cells));
    }
    const caption = element("caption", { class: "unseen" }, this.title);
    this.table.replaceChildren(
      caption,
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...rows),
    );
  }
}

function mean(values) {
  const known = values.filter((value) => value != null);
  return known.length > 0 ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** A round number needs no decimals. */
const short = (text) => text.replace(/\.0+(?=\D|$)/, "");

const classOf = ({ tier, dashed }) => `tier-${tier}${dashed ? " dashed" : ""}`;
