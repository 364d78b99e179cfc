// Long work of the daemon: how far each job is, how it ended, and a button that ends it.

import { Bar, element, setText, Table } from "./dom.js";
import * as format from "./format.js";
import { requestJson } from "./connection.js";

const OVER = new Set(["done", "failed", "cancelled"]);

function inWord(name, value) {
  if (Array.isArray(value)) return `${value.length} ${name}`;
  if (name.startsWith("bytes") && typeof value === "number")
    return `${name.replaceAll("_", " ")} ${format.bytes(value)}`;
  const text = typeof value === "string" && value.length > 24 ? `${value.slice(0, 12)}…` : value;
  if (name.endsWith("_s")) return `${name.slice(0, -2).replaceAll("_", " ")} ${format.duration(value)}`;
  return `${name.replaceAll("_", " ")} ${text}`;
}

/** What a job was asked or gave, in a few words. */
function inWords(facts) {
  const given = Object.entries(facts ?? {}).filter(([, value]) => value != null && value !== "" && value?.length !== 0);
  return given.map(([name, value]) => inWord(name, value)).join(", ");
}

function outcome(job) {
  if (job.error) return `${job.error.code}: ${job.error.message}`;
  return inWords(job.result);
}

export class Jobs {
  #jobs = new Map();

  /** `announce(text)` is told what ended while the page was open. */
  constructor(place, announce) {
    this.announce = announce;
    this.failure = element("p", { class: "note bad", role: "alert", hidden: true });
    place.append(this.failure);
    this.table = new Table(place, {
      caption: "Jobs",
      keyOf: ({ id }) => id,
      empty: "No job runs, and none ended lately.",
      rowsMax: 20,
      columns: [
        { title: "Job", text: ({ id, kind }) => `${kind} ${id}`, head: true },
        { title: "State", text: ({ state }) => state },
        { title: "Progress", make: makeProgress, update: showProgress },
        { title: "For", text: (job) => format.duration(job.took_s ?? job.age_s), numeric: true, wide: true },
        { title: "Asked", text: (job) => inWords(job.arguments), class: "long", wide: true },
        { title: "Result", text: outcome, class: "long" },
        { title: "Act", make: (job) => this.#button(job), update: (node, job) => (node.hidden = OVER.has(job.state)) },
      ],
    });
  }

  show(jobs) {
    this.#jobs = new Map(jobs.map((job) => [job.id, job]));
    this.#draw();
  }

  /** One job changed. */
  showOne(job) {
    const before = this.#jobs.get(job.id);
    if (OVER.has(job.state) && before?.state !== job.state) this.announce(`Job ${job.kind} ${job.id}: ${job.state}`);
    this.#jobs.set(job.id, job);
    this.#draw();
  }

  #draw() {
    const running = (job) => !OVER.has(job.state);
    const ordered = [...this.#jobs.values()].sort(
      (one, other) => running(other) - running(one) || one.age_s - other.age_s,
    );
    this.table.show(ordered);
  }

  #button(job) {
    const cancel = async () => {
      this.failure.hidden = true;
      try {
        this.showOne(await requestJson(`v1/jobs/${job.id}`, { method: "DELETE" }));
      } catch (error) {
        setText(this.failure, `Job ${job.id} was not cancelled: ${error.message}`);
        this.failure.hidden = false;
      }
    };
    const label = `Cancel job ${job.kind} ${job.id}`;
    return element("button", { type: "button", class: "small", "aria-label": label, onclick: cancel }, "Cancel");
  }
}

function makeProgress() {
  const bar = new Bar("inline");
  const node = element("span", { class: "progress" }, bar.node, element("span", { class: "numeric" }));
  node.bar = bar;
  return node;
}

function showProgress(node, { state, done, total, unit }) {
  const share = state === "done" ? 1 : format.ratio(done, total); // done is done, however much there was to do
  const write = unit === "bytes" ? format.bytes : format.count;
  node.bar.show(share);
  const text = share === null ? (done ? `${write(done)} ${unit ?? ""}` : "–") : format.percent(share);
  setText(node.lastElementChild, text, done);
}
