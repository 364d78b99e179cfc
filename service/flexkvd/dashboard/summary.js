// The line one reads first: is it well, how much does it save, how busy is it. Owns the banner and what is announced.

import { byId, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";
import { hitShares, rate } from "./history.js";

const RECENT_S = 60;
const LIVE_S = 3;

/** Say it to those who listen rather than look; only what changed, and never a number that runs. */
export function announce(text) {
  setText(byId("announcement"), text);
}

export class Summary {
  #state = "";

  /** What GET /v1/status says. */
  showStatus(status) {
    setText(byId("version"), `flexkvd ${status.version}`);
    setText(byId("uptime"), format.duration(status.uptime_s));
    this.reasons = { ...status.reasons, ...status.degraded };
    const state = status.state ?? (status.ready ? "ready" : "starting");
    const degraded = state === "ready" && Object.keys(status.degraded).length > 0;
    this.#show(degraded ? "degraded" : state);
  }

  /** What the connection says when the daemon says nothing. */
  showLost({ seconds, reason }) {
    this.reasons = { connection: `${reason}; next try in ${format.duration(seconds)}` };
    this.#show("lost");
  }

  showSample(history) {
    const [minute, live] = [history.recent(RECENT_S), history.recent(LIVE_S)];
    const { latest } = history;
    setText(byId("hit-ratio"), format.percent(minute && hitShares(minute)?.all));
    const keys = (counts) => Object.values(counts ?? {}).reduce((sum, value) => sum + value, 0);
    setText(byId("loads"), format.perSecond(live && rate(live, (sample) => keys(sample.load_keys))));
    setText(byId("saves"), format.perSecond(live && rate(live, (sample) => keys(sample.save_keys))));
    setText(byId("sessions-count"), format.count(latest?.sessions), latest?.sessions);
    setText(byId("tickets-count"), format.count(latest?.tickets), latest?.tickets);
  }

  #show(state) {
    const kinds = { ready: "good", degraded: "warn", starting: "warn", draining: "warn", lost: "bad" };
    const words = { lost: "connection lost" };
    const pill = byId("state");
    setText(pill, words[state] ?? state);
    setAttribute(pill, "data-kind", kinds[state] ?? "warn");
    setAttribute(document.body, "data-stale", state === "lost" ? "true" : null);
    const lines = Object.entries(this.reasons ?? {}).map(([what, why]) => `${what}: ${why}`);
    byId("banner").hidden = lines.length === 0;
    setAttribute(byId("banner"), "data-kind", kinds[state] ?? "warn");
    setText(byId("banner-text"), lines.join(" · "));
    document.title = state === "ready" ? "flexkvd" : `${words[state] ?? state} · flexkvd`;
    if (state === this.#state) return;
    announce(`The daemon is ${state === "lost" ? "not answering" : state}. ${lines.join(". ")}`);
    this.#state = state;
  }
}
