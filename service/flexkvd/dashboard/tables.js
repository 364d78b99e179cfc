// Who uses the daemon, and what went wrong of late: sessions, tenants with their quotas, faults.

import { Bar, element, setAttribute, setText, Table } from "./dom.js";
import * as format from "./format.js";

const counted = (title, of, wide = false) => ({
  title,
  text: (row) => format.count(of(row)),
  value: of,
  numeric: true,
  wide,
});

export const sessionsTable = (place) =>
  new Table(place, {
    caption: "Sessions",
    keyOf: ({ session }) => session,
    empty: "No worker is connected.",
    rowsMax: 50,
    columns: [
      { title: "Session", text: ({ session }) => String(session), head: true },
      { title: "Role", text: ({ role, closed }) => (closed ? `${role}, closed` : role) },
      { title: "Tenant", text: ({ tenant }) => tenant || "default" },
      {
        title: "Client",
        text: ({ client, pid }) => (client.includes(String(pid)) ? client : `${client} (pid ${pid})`),
        wide: true,
        class: "long",
      },
      counted("Shard", (row) => row.shard, true),
      counted("Tickets", (row) => row.tickets),
      counted("Leases", (row) => row.leases),
      counted("Attached", (row) => row.attached, true),
      { title: "For", text: ({ age_s: age }) => format.age(age), numeric: true },
    ],
  });

/** What a tenant has in one tier, beside its quota there. */
function quotaColumn(tier) {
  return {
    title: tier.toUpperCase(),
    make: () => {
      const bar = new Bar(`inline tier-${tier}`);
      const node = element("span", { class: "quota" }, bar.node, element("span", { class: "numeric" }));
      node.bar = bar;
      return node;
    },
    update: (node, { used, quota }) => {
      const limit = quota?.[`${tier}_bytes`] || null;
      const share = format.ratio(used?.[tier] ?? 0, limit);
      node.bar.show(share);
      setAttribute(node, "data-kind", share !== null && share >= 0.95 ? "warn" : null);
      const text = format.bytes(used?.[tier] ?? 0) + (limit ? ` of ${format.bytes(limit)}` : "");
      setText(node.lastElementChild, text, used?.[tier] ?? 0);
    },
  };
}

export const tenantsTable = (place) =>
  new Table(place, {
    caption: "Tenants",
    keyOf: ({ name, kind }) => `${kind ?? "named"}/${name}`,
    empty: "No tenant has anything here yet.",
    rowsMax: 50,
    columns: [
      {
        title: "Tenant",
        text: ({ name, kind }) => ({ unknown: "not yet known", others: "all others" })[kind] ?? (name || '""'),
        head: true,
      },
      {
        title: "Hit ratio",
        text: ({ hit_ratio: share }) => format.percent(share),
        value: (row) => row.hit_ratio,
        numeric: true,
      },
      ...["dram", "ssd", "s3"].map(quotaColumn),
      counted("Refused", (row) => row.refused, true),
      counted("Evictions", (row) => row.evictions, true),
      { title: "Weight", text: ({ quota }) => String(quota?.weight ?? 1), numeric: true, wide: true },
    ],
  });

export const faultsTable = (place) =>
  new Table(place, {
    caption: "Recent faults",
    keyOf: ({ what, tier, detail }) => `${what}/${tier}/${detail}`,
    empty: "Nothing failed since the daemon started.",
    rowsMax: 20,
    columns: [
      { title: "What", text: ({ what }) => what, head: true },
      { title: "Tier", text: ({ tier }) => tier || "–" },
      { title: "Ago", text: ({ age_s: seconds }) => format.age(seconds), numeric: true },
      { title: "Times", text: ({ count }) => format.count(count ?? 1), numeric: true },
      { title: "Detail", text: ({ detail }) => detail, class: "long" },
    ],
  });
