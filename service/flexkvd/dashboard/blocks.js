// Blocks worth a look: the hottest, those that met a fault last, and any block's story in a dialog.

import { byId, element, setText, Table } from "./dom.js";
import * as format from "./format.js";
import { requestJson } from "./connection.js";

const KEY = /^[0-9a-f]{32}$/;

/** The dialog that tells where a block is and why. */
export class Story {
  constructor() {
    this.dialog = byId("story");
    this.key = byId("story-key");
    this.explanation = byId("story-explanation");
    this.events = byId("story-events");
    this.copies = byId("story-copies");
    byId("story-close").addEventListener("click", () => this.dialog.close());
    const form = byId("find-block");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#find(form.elements.key);
    });
  }

  async open(key) {
    setText(this.key, key);
    setText(this.explanation, "Asking the daemon …");
    this.events.replaceChildren();
    this.copies.replaceChildren();
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const [story, copies] = await Promise.all([
        requestJson(`v1/blocks/${key}/story`),
        this.#copiesOf(key).catch(() => []),
      ]);
      this.#show(story, copies);
    } catch (error) {
      setText(this.explanation, `The story cannot be read: ${error.message}`);
    }
  }

  /** Listed, not asked for by key: a block that is nowhere is an answer here, not an error. */
  async #copiesOf(key) {
    const { blocks } = await requestJson(`v1/blocks?prefix=${key}&limit=8`);
    return blocks;
  }

  #find(input) {
    const key = input.value.trim().toLowerCase();
    input.setCustomValidity(KEY.test(key) ? "" : "A key has 32 hexadecimal digits.");
    if (input.reportValidity()) this.open(key);
    input.addEventListener("input", () => input.setCustomValidity(""), { once: true });
  }

  #show(story, copies) {
    setText(this.explanation, story.explanation ?? "");
    const lines = copies.map((block) => {
      const where = block.tiers.length > 0 ? block.tiers.join(", ") : "no tier";
      const held = block.pinned ? ", pinned" : block.leased ? ", leased" : "";
      return element("li", {}, `in ${where}: ${format.bytes(block.bytes)}, used ${block.uses} times${held}`);
    });
    this.copies.replaceChildren(...lines);
    const events = story.events.map(({ age_s: age, what, tier, detail }) =>
      element(
        "li",
        { class: `tier-${tier}` },
        element("span", { class: "numeric age" }, `${format.age(age)} ago`),
        element("span", { class: "what" }, `${what} · ${tier}`),
        element("span", { class: "detail" }, detail),
      ),
    );
    this.events.replaceChildren(...events);
    if (events.length === 0) this.events.append(element("li", {}, "The ring of stories has nothing about it."));
  }
}

/** A column with the key as a button that opens the story. */
export const keyColumn = (story) => ({
  title: "Block",
  head: true,
  make: ({ key }) =>
    element(
      "button",
      {
        type: "button",
        class: "link-like key",
        title: key,
        "aria-label": `Story of block ${key}`,
        onclick: () => story.open(key),
      },
      format.shortKey(key),
    ),
});

export class Blocks {
  constructor(hottest, faulted, story) {
    this.hottest = new Table(hottest, {
      caption: "Hottest blocks",
      keyOf: (block) => `${block.namespace}/${block.shard}/${block.key}`,
      empty: "No block was used twice yet.",
      columns: [
        keyColumn(story),
        { title: "Uses", text: ({ uses }) => format.count(uses), value: ({ uses }) => uses, numeric: true },
        { title: "In", text: ({ tiers }) => tiers.join(", ") || "–" },
        { title: "Shard", text: ({ shard }) => String(shard), numeric: true, wide: true },
      ],
    });
    this.faulted = new Table(faulted, {
      caption: "Blocks that met a fault",
      keyOf: ({ key, tier, what, detail }) => `${key}/${tier}/${what}/${detail}`,
      empty: "No block met a fault, as far back as stories reach.",
      columns: [
        keyColumn(story),
        { title: "Ago", text: ({ age_s: age }) => format.age(age), numeric: true },
        { title: "Tier", text: ({ tier }) => tier },
        { title: "What", text: ({ what, detail }) => (detail ? `${what}: ${detail}` : what), class: "long" },
      ],
    });
  }

  show({ hottest, faulted }) {
    this.hottest.show(hottest);
    this.faulted.show(faulted);
  }
}
