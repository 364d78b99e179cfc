// The tiers as a pipeline: what each holds, and what flows between them. Numbers come from /v1/tiers and the samples.

import { Bar, element, setAttribute, setText, svg } from "./dom.js";
import * as format from "./format.js";
import { rate } from "./history.js";

const TIERS = [
  { tier: "hbm", name: "HBM", place: "hot rows in the workers’ GPUs" },
  { tier: "dram", name: "DRAM", place: "pinned memory of this node" },
  { tier: "ssd", name: "SSD", place: "the log on local disks" },
  { tier: "s3", name: "S3", place: "objects in a bucket" },
];
const LINKS = [
  { upper: "hbm", lower: "dram", down: "worker_dram", up: "dram_worker", downIs: "saves", upIs: "loads" },
  { upper: "dram", lower: "ssd", down: "dram_ssd", up: "ssd_dram", downIs: "demotions", upIs: "promotions" },
  {
    upper: "ssd",
    lower: "s3",
    down: "dram_s3",
    up: "s3_dram",
    downIs: "demotions",
    upIs: "promotions",
    via: "through DRAM",
  },
];
const RATE_S = 3; // short enough to be live, long enough to be read
const FLOW_BYTES_PER_S = [1 << 16, 1 << 33]; // from a trickle to as much as can be shown
const DASH = 24; // one period of the pattern that moves

const FACTS = [
  ["blocks", "Blocks"],
  ["evictable_blocks", "Evictable"],
  ["writes_in_flight", "Being written"],
  ["hits", "Hits"],
  ["promotions", "Promotions"],
  ["demotions", "Demotions"],
  ["evictions", "Evictions"],
  ["faults", "Faults"],
];
const ROW_FACTS = [
  ["readers", "Workers"],
  ["requests", "Requests"],
  ["blocks", "Blocks attached"],
  ["granted", "Chunks granted"],
  ["revoked", "Chunks revoked"],
];

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Pipeline {
  constructor(place) {
    this.cards = new Map();
    this.links = [];
    TIERS.forEach((tier, at) => {
      const card = tier.tier === "hbm" ? new HbmCard(tier) : new TierCard(tier);
      this.cards.set(tier.tier, card);
      place.append(card.node);
      if (LINKS[at]) {
        const link = new Link(LINKS[at]);
        this.links.push(link);
        place.append(link.node);
      }
    });
  }

  /** Everything that counts slowly, as GET /v1/tiers answers it. */
  showTiers(tiers) {
    const known = new Map(tiers.map((tier) => [tier.tier, tier]));
    for (const [name, card] of this.cards) card.show(known.get(name) ?? null);
    for (const link of this.links) link.configured(known.has(link.lower));
  }

  /** What moves now. */
  showFlow(history) {
    const recent = history.recent(RATE_S);
    if (!recent) return;
    for (const link of this.links) link.show(recent);
    for (const [name, card] of this.cards) card.showSample(recent, name);
  }
}

class Card {
  constructor({ tier, name, place }) {
    this.state = element("span", { class: "tier-state" });
    this.reason = element("p", { class: "reason", hidden: true });
    this.facts = new Map();
    const heading = element("header", {}, element("h3", {}, name), this.state);
    this.node = element("li", { class: `panel tier tier-${tier}`, "data-tier": tier }, heading);
    this.node.append(element("p", { class: "place" }, place), this.reason);
  }

  addFacts(facts) {
    const list = element("dl", { class: "facts" });
    for (const [name, label] of facts) {
      const value = element("dd", { "data-of": name });
      this.facts.set(name, value);
      list.append(element("div", {}, element("dt", {}, label), value));
    }
    this.node.append(list);
  }

  showFacts(from) {
    for (const [name, node] of this.facts) setText(node, format.count(from[name]), from[name]);
  }

  showState(text, kind, reason = "") {
    setText(this.state, text);
    setAttribute(this.state, "data-kind", kind);
    setText(this.reason, reason);
    this.reason.hidden = !reason;
  }

  showSample() {}
}

class TierCard extends Card {
  constructor(tier) {
    super(tier);
    this.share = element("span", { class: "big numeric" });
    this.bar = new Bar();
    this.used = element("span", { class: "numeric", "data-of": "used_bytes" });
    this.room = element("span", { class: "numeric", "data-of": "capacity_bytes" });
    this.usage = element("p", { class: "usage" }, this.used, this.room);
    this.node.append(this.share, this.bar.node, this.usage);
    this.addFacts(FACTS);
  }

  show(tier) {
    setAttribute(this.node, "data-absent", tier === null ? "true" : null);
    if (tier === null) {
      setText(this.share, "");
      this.bar.show(null);
      this.showState("not configured", "off");
      return;
    }
    this.#showRoom(tier.used_bytes, tier.capacity_bytes);
    this.showFacts(tier);
    setAttribute(this.facts.get("faults"), "data-kind", tier.faults > 0 ? "warn" : null);
    const breaker = tier.breaker && tier.breaker.state !== "closed" ? `breaker ${tier.breaker.state}` : "";
    if (!tier.up) this.showState("down", "bad", tier.down_reason);
    else if (breaker || tier.down_reason) this.showState("ailing", "warn", tier.down_reason || breaker);
    else this.showState("up", "good");
  }

  showSample({ to }, name) {
    const sample = to.tiers[name];
    if (sample && this.node.dataset.absent !== "true") this.#showRoom(sample.used_bytes, sample.capacity_bytes);
  }

  #showRoom(used, capacity) {
    const share = format.ratio(used, capacity);
    setText(this.share, share === null ? format.bytes(used) : format.percent(share));
    this.bar.show(share);
    setText(this.used, format.bytes(used), used);
    setText(this.room, capacity ? ` of ${format.bytes(capacity)}` : " used, no limit set", capacity);
  }
}

/** Hot rows live in the workers: what the daemon knows of them is what it granted and what workers report. */
class HbmCard extends Card {
  constructor(tier) {
    super(tier);
    this.unused = element(
      "p",
      { class: "note unused" },
      "No worker reads rows from DRAM now. Loads and saves go past this tier.",
    );
    this.node.append(this.unused);
    this.addFacts(ROW_FACTS);
  }

  show(tier) {
    const said = tier ? { ...tier.detail, ...tier } : {};
    const used = Boolean(said.readers);
    setAttribute(this.node, "data-absent", used ? null : "true");
    this.unused.hidden = used;
    this.showState(used ? "in use" : "not in use", used ? "good" : "off");
    if (used) this.showFacts(said);
  }
}

/** One lane of a link: how much flows, and a line that moves with it. */
class Lane {
  constructor(direction, link, is) {
    this.link = link;
    this.rate = element("span", { class: "rate numeric", "data-link": link });
    this.line = svg("line", { x1: 0, x2: "100%", y1: 6, y2: 6 });
    this.drawing = svg("svg", { class: "lane-line", height: 12, "aria-hidden": "true" }, this.line);
    this.node = element("div", { class: `lane ${direction}` }, element("span", { class: "lane-is" }, is), this.rate);
    this.node.append(this.drawing);
    const towards = direction === "down" ? [DASH, 0] : [0, DASH];
    const frames = towards.map((offset) => ({ strokeDashoffset: offset }));
    this.motion = this.line.animate(frames, { duration: 1000, iterations: Infinity });
    this.motion.pause();
    calm.addEventListener("change", () => this.#move(0));
  }

  show(recent) {
    const perSecond = rate(recent, (sample) => sample.links[this.link]?.bytes);
    const link = recent.to.links[this.link];
    setText(this.rate, format.bytesPerSecond(perSecond), perSecond);
    setAttribute(this.node, "title", link ? `${this.link}: ${link.running} running, ${link.waiting} waiting` : null);
    const [least, most] = FLOW_BYTES_PER_S.map(Math.log2);
    const strength = perSecond ? Math.min(1, Math.max(0.05, (Math.log2(perSecond) - least) / (most - least))) : 0;
    this.line.style.strokeWidth = strength ? 1.5 + 4 * strength : 1;
    setAttribute(this.node, "data-flows", strength > 0 ? "true" : null);
    this.#move(strength);
  }

  #move(strength) {
    if (strength === 0 || calm.matches) this.motion.pause();
    else {
      this.motion.updatePlaybackRate(0.3 + 1.4 * strength);
      if (this.motion.playState !== "running") this.motion.play();
    }
  }
}

class Link {
  constructor({ upper, lower, down, up, downIs, upIs, via }) {
    this.lower = lower;
    this.lanes = [new Lane("down", down, downIs), new Lane("up", up, upIs)];
    const label = `Between ${upper.toUpperCase()} and ${lower.toUpperCase()}${via ? `, ${via}` : ""}`;
    this.node = element(
      "li",
      { class: `link tier-${lower}`, "aria-label": label },
      ...this.lanes.map(({ node }) => node),
    );
    if (via) this.node.append(element("span", { class: "via" }, via));
  }

  configured(is) {
    setAttribute(this.node, "data-absent", is ? null : "true");
  }

  show(recent) {
    for (const lane of this.lanes) lane.show(recent);
  }
}
