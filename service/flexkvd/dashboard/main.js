// The page put together: what is read when, and who shows it.

import { Blocks, Story } from "./blocks.js";
import { Charts } from "./charts.js";
import { ApiError, EventStream, hasToken, keepToken, request, requestJson } from "./connection.js";
import { byId, setText } from "./dom.js";
import { History } from "./history.js";
import { Jobs } from "./jobs.js";
import { Latencies } from "./latencies.js";
import { Pipeline } from "./pipeline.js";
import { Policy } from "./policy.js";
import { announce, Summary } from "./summary.js";
import { faultsTable, sessionsTable, tenantsTable } from "./tables.js";

const KEPT_S = 900;
const LOOK_S = 0.5;

const history = new History();
const summary = new Summary();
const story = new Story();
const pipeline = new Pipeline(byId("pipeline"));
const charts = new Charts(byId("charts"), history);
const latencies = new Latencies(byId("latencies"));
const blocks = new Blocks(byId("hottest"), byId("faulted"), story);
const jobs = new Jobs(byId("jobs"), announce);
const policy = new Policy(byId("policy"));
const sessions = sessionsTable(byId("sessions"));
const tenants = tenantsTable(byId("tenants"));
const faults = faultsTable(byId("faults"));

/** What is asked again and again: where, how often, who shows it, and in which section a failure is told. */
const POLLS = [
  { path: "v1/status", every_s: 2, section: "at-a-glance", show: (answer) => summary.showStatus(answer) },
  {
    path: "v1/tiers",
    every_s: 2,
    section: "tiers",
    show: ({ tiers }) => (pipeline.showTiers(tiers), latencies.showTiers(tiers)),
  },
  { path: "v1/sessions", every_s: 3, section: "sessions", show: (answer) => sessions.show(answer.sessions) },
  { path: "v1/tenants", every_s: 4, section: "tenants", show: (answer) => tenants.show(answer.tenants) },
  { path: "v1/jobs", every_s: 5, section: "jobs", show: (answer) => jobs.show(answer.jobs) },
  { path: "v1/policy", every_s: 4, section: "policy", show: (answer) => policy.show(answer) },
  { path: "v1/notable", every_s: 4, section: "blocks", show: (answer) => blocks.show(answer) },
  { path: "v1/faults?limit=20", every_s: 5, section: "faults", show: (answer) => faults.show(answer.faults) },
  { path: "metrics", every_s: 10, section: "latencies", show: (text) => latencies.showMetrics(text), plain: true },
];

let live = false;

function showSample(sample) {
  history.add(sample);
  summary.showSample(history);
  pipeline.showFlow(history);
  if (!document.hidden) charts.draw();
}

async function catchUp() {
  const { samples } = await requestJson(`v1/samples?last_s=${KEPT_S}`);
  history.replace(samples);
  if (history.latest) showSample(history.latest);
}

async function poll(each) {
  const note = document.querySelector(`#${each.section} > .failure`);
  try {
    const answer = each.plain ? await request(each.path) : await requestJson(each.path);
    each.show(answer);
    note.hidden = true;
  } catch (error) {
    if (!(error instanceof ApiError)) return; // nobody answered: the stream will say so
    if (error.status === 404) each.due_ms = Infinity; // another release of the daemon: not until it comes back
    setText(note, `This could not be read: ${error.message}`);
    note.hidden = error.status === 401; // then the whole page asks for a token
  }
}

/** Everything that is due, one after another; nothing while nobody looks or nobody answers. */
async function look() {
  if (live && !document.hidden) {
    for (const each of POLLS) {
      const now = performance.now();
      if (now < (each.due_ms ?? 0)) continue;
      each.due_ms = now + 1000 * each.every_s;
      await poll(each);
    }
  }
  setTimeout(look, 1000 * LOOK_S);
}

const SHOW = {
  sample: showSample,
  job: (job) => jobs.showOne(job),
  fault: () => POLLS.filter(({ section }) => section === "faults").forEach((each) => (each.due_ms = 0)),
};

const stream = new EventStream({
  onEvent: (name, data) => SHOW[name]?.(data),
  onState: (state, detail) => {
    live = state === "live";
    if (state === "lost") summary.showLost(detail);
    if (state === "refused") askForToken(detail);
    if (state === "live") {
      for (const each of POLLS) each.due_ms = 0;
      catchUp().catch(() => {}); // what is missed of the past is only missed; the stream goes on
    }
  },
});

function askForToken(error) {
  const dialog = byId("token");
  setText(byId("token-why"), hasToken() ? `The token was refused: ${error.message}` : "This daemon asks for a token.");
  keepToken("");
  if (!dialog.open) dialog.showModal();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token-value").value.trim());
  byId("token-value").value = "";
  byId("token").close();
  byId("forget-token").hidden = false;
  stream.resume();
});
byId("token").addEventListener("cancel", (event) => event.preventDefault()); // without a token there is nothing to see
byId("forget-token").hidden = !hasToken();
byId("forget-token").addEventListener("click", () => {
  keepToken("");
  location.reload();
});
for (const choice of document.querySelectorAll("input[name=span]")) {
  choice.addEventListener("change", () => {
    charts.seconds = Number(choice.value);
    charts.draw();
  });
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) charts.draw();
});

stream.run();
look();
