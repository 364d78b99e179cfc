// The policies at work: how each tier's order is made up, and what was predicted against what came true.

import { Bar, element, setAttribute, setText, Table } from "./dom.js";
import * as format from "./format.js";

const LISTS = [
  ["cold", "also below, or asked for by nobody"],
  ["once", "used once"],
  ["again", "used again"],
];

const total = (lists) => LISTS.reduce((sum, [name]) => sum + (lists?.[name] ?? 0), 0);

/** Three parts of a bar, as wide as the lists are long. */
const makeLists = () =>
  element(
    "span",
    { class: "parts", role: "img" },
    ...LISTS.map(([name]) => element("span", { class: `part ${name}` })),
  );

function showLists(node, { lists }) {
  const whole = total(lists);
  const said = LISTS.map(([name, label]) => `${format.count(lists?.[name] ?? 0)} ${label}`).join(", ");
  setAttribute(node, "aria-label", said);
  setAttribute(node, "title", said);
  LISTS.forEach(([name], at) => (node.children[at].style.flexGrow = whole ? (lists?.[name] ?? 0) / whole : 0));
}

/** From which use on each tier below DRAM takes a block. */
const admitted = (hitsMin) =>
  Object.entries(hitsMin ?? {})
    .map(([tier, uses]) => `${tier.toUpperCase()} takes ${uses <= 1 ? "every block" : `what was used ${uses} times`}`)
    .join(", ") || "nothing goes below DRAM";

const parameters = (given) =>
  Object.entries(given ?? {})
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)
    .join(", ");

export class Policy {
  constructor(place) {
    this.admission = element("span", { class: "strong" });
    this.rows = element("span", { class: "strong" });
    this.predicted = element("span", { class: "numeric", "data-of": "predicted" });
    this.cameTrue = element("span", { class: "numeric", "data-of": "came_true" });
    this.share = element("span", { class: "big numeric" });
    this.bar = new Bar();
    const keys = LISTS.map(([name, label]) =>
      element("span", { class: "list-key" }, element("span", { class: `part ${name}` }), `${name}: ${label}`),
    );
    const orders = element("div", { class: "panel" }, element("h3", {}, "Order of eviction"));
    const first = element("p", { class: "note" }, "First to go: ", ...keys);
    const lead = element("p", { class: "note" }, "What goes down: ", this.admission);
    const rows = element("div", { class: "panel tier-hbm" }, element("h3", {}, "Predictions of the row policy"));
    this.told = element("p", {}, this.cameTrue, " of ", this.predicted, " predictions came true");
    this.named = element("p", { class: "note" }, "Row policy: ", this.rows);
    place.append(orders, rows);
    orders.append(first, lead);
    rows.append(this.share, this.bar.node, this.told, this.named);
    this.table = new Table(orders, {
      caption: "Order of eviction by tier",
      keyOf: ({ tier, tenant }) => `${tier}/${tenant ?? ""}`,
      empty: "No tier has an order.",
      columns: [
        { title: "Tier", text: ({ tier }) => tier.toUpperCase(), head: true },
        { title: "Policy", text: ({ policy }) => policy },
        { title: "Cold, once, again", make: makeLists, update: showLists },
        { title: "In order", text: ({ lists }) => format.count(total(lists)), numeric: true },
        { title: "Parameters", text: (row) => parameters(row.parameters), class: "long", wide: true },
      ],
    });
  }

  show({ tiers, admission, row_policy: rowPolicy }) {
    this.table.show(tiers);
    setText(this.admission, admitted(admission));
    setText(this.rows, rowPolicy?.name ?? "none");
    this.#showPredictions(rowPolicy ?? {});
  }

  #showPredictions({ predicted, came_true: cameTrue }) {
    const share = format.ratio(cameTrue, predicted);
    setText(this.share, share === null ? "nothing predicted yet" : format.percent(share));
    setAttribute(this.share, "data-kind", share === null ? "off" : null);
    this.bar.show(share);
    this.told.hidden = share === null;
    setText(this.predicted, format.count(predicted), predicted);
    setText(this.cameTrue, format.count(cameTrue), cameTrue);
  }
}
