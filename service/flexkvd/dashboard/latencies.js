// How long things take: moves on each link, and tickets of each kind. Owns the reading of a Prometheus histogram.

import { element, setAttribute, svg, Table } from "./dom.js";
import * as format from "./format.js";

const TICKETS = "flexkv_ticket_seconds";
const SCALE_S = [1e-5, 1e1]; // what the little pictures span, in powers of ten
const PICTURE_WIDTH = 96;

/** Buckets of a family in Prometheus text, summed over all labels but `by`: Map of label → [[bound, count], …]. */
export function histograms(text, family, by) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith(`${family}_bucket{`)) continue;
    const labels = new Map([...line.matchAll(/(\w+)="([^"]*)"/g)].map(([, name, value]) => [name, value]));
    const bound = labels.get("le") === "+Inf" ? Infinity : Number(labels.get("le"));
    const count = Number(line.slice(line.lastIndexOf(" ") + 1));
    const buckets = found.get(labels.get(by)) ?? new Map();
    buckets.set(bound, (buckets.get(bound) ?? 0) + count);
    found.set(labels.get(by), buckets);
  }
  return new Map([...found].map(([label, buckets]) => [label, [...buckets].sort(([a], [b]) => a - b)]));
}

/** The value below which `share` of a cumulative histogram lies, straight within a bucket; null when it is empty. */
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total === 0) return null;
  let [below, seen] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= share * total) {
      if (bound === Infinity) return below; // all that is known: it took longer than the last bound
      return below + ((bound - below) * (share * total - seen)) / (count - seen);
    }
    [below, seen] = [bound, count];
  }
  return below;
}

/** Ticket kinds as rows, the busiest first. */
export function ticketRows(metrics) {
  return [...histograms(metrics, TICKETS, "kind")]
    .map(([kind, buckets]) => ({
      kind,
      count: buckets.at(-1)[1],
      p50: quantile(buckets, 0.5),
      p99: quantile(buckets, 0.99),
    }))
    .filter(({ count }) => count > 0)
    .sort((one, other) => other.count - one.count);
}

const seconds = (title, of, wide = false) => ({
  title,
  text: (row) => format.duration(of(row)),
  value: of,
  numeric: true,
  wide,
});
const counted = (title, of, wide = false) => ({
  title,
  text: (row) => format.count(of(row)),
  value: of,
  numeric: true,
  wide,
});

/** From the median to the 99th percentile on one logarithmic scale for all rows: long and far right is slow. */
function picture(of) {
  const x = (value) => {
    const [least, most] = SCALE_S.map(Math.log10);
    const share = (Math.log10(Math.max(value, SCALE_S[0])) - least) / (most - least);
    return 4 + (PICTURE_WIDTH - 8) * Math.min(1, share);
  };
  return {
    title: "10 µs – 10 s",
    wide: true,
    make: () => {
      const span = svg("line", { y1: 8, y2: 8, class: "span" });
      const median = svg("circle", { cy: 8, r: 3, class: "median" });
      return svg(
        "svg",
        { class: "span-picture", width: PICTURE_WIDTH, height: 16, "aria-hidden": "true" },
        span,
        median,
      );
    },
    update: (node, row) => {
      const { p50, p99 } = of(row) ?? {};
      node.style.visibility = p50 == null ? "hidden" : "visible";
      if (p50 == null) return;
      const [span, median] = node.children;
      setAttribute(span, "x1", x(p50));
      setAttribute(span, "x2", x(p99));
      setAttribute(median, "cx", x(p50));
    },
  };
}

export class Latencies {
  constructor(place) {
    const links = element("div", { class: "panel" }, element("h3", {}, "Links"));
    const tickets = element("div", { class: "panel" }, element("h3", {}, "Tickets"));
    place.append(links, tickets);
    this.links = new Table(links, {
      caption: "Latency of each link",
      keyOf: ({ link }) => link,
      empty: "No link has moved anything yet.",
      columns: [
        { title: "Link", text: ({ link }) => link.replace("_", " → "), head: true },
        seconds("p50", (row) => row.seconds?.p50),
        seconds("p99", (row) => row.seconds?.p99),
        picture((row) => row.seconds),
        seconds("Wait p99", (row) => row.queue_s?.p99),
        counted("Running", (row) => row.running, true),
        counted("Waiting", (row) => row.waiting),
        counted("Too late", (row) => row.dropped, true),
      ],
    });
    this.tickets = new Table(tickets, {
      caption: "Latency of each kind of ticket",
      keyOf: ({ kind }) => kind,
      empty: "No ticket has ended yet.",
      columns: [
        { title: "Kind", text: ({ kind }) => kind, head: true },
        seconds("p50", (row) => row.p50),
        seconds("p99", (row) => row.p99),
        picture((row) => row),
        counted("Ended", (row) => row.count),
      ],
    });
  }

  showTiers(tiers) {
    const links = tiers.flatMap((tier) => tier.links ?? []);
    this.links.show(links.filter(({ link }, at) => links.findIndex((other) => other.link === link) === at));
  }

  showMetrics(text) {
    this.tickets.show(ticketRows(text));
  }
}
