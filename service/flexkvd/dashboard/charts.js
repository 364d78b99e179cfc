// The four curves: where hits come from, what flows, how full the tiers are, how late the loop is.

import { Chart } from "./chart.js";
import * as format from "./format.js";
import { hitShares, rate } from "./history.js";

const STEPS = 120;
const TIERS = [
  { name: "dram", label: "DRAM", tier: "dram" },
  { name: "ssd", label: "SSD", tier: "ssd" },
  { name: "s3", label: "S3", tier: "s3" },
];
const LINKS = [
  { name: "dram_worker", label: "loads", tier: "dram" },
  { name: "worker_dram", label: "saves", tier: "dram", dashed: true },
  { name: "ssd_dram", label: "from SSD", tier: "ssd" },
  { name: "dram_ssd", label: "to SSD", tier: "ssd", dashed: true },
  { name: "s3_dram", label: "from S3", tier: "s3" },
  { name: "dram_s3", label: "to S3", tier: "s3", dashed: true },
];
const LAG = [{ name: "lag", label: "99th percentile", tier: "none" }];

const occupancy = (sample, tier) => format.ratio(sample?.tiers[tier]?.used_bytes, sample?.tiers[tier]?.capacity_bytes);
const each = (series, value) => Object.fromEntries(series.map(({ name }) => [name, value(name)]));

export class Charts {
  seconds = 300;

  constructor(place, history) {
    this.history = history;
    this.charts = [
      [
        new Chart(place, {
          title: "Hit ratio by tier",
          series: TIERS,
          format: format.percent,
          stacked: true,
          max: 1,
          note: "Of the blocks workers loaded or missed, the share that came from each tier.",
        }),
        (step) => hitShares(step) ?? {},
      ],
      [
        new Chart(place, {
          title: "Flow",
          series: LINKS,
          format: format.bytesPerSecond,
          base: 2,
          topMin: 1 << 20,
          note: "Solid towards the workers, dashed away from them.",
        }),
        (step) => each(LINKS, (link) => rate(step, (sample) => sample.links[link]?.bytes)),
      ],
      [
        new Chart(place, {
          title: "Occupancy",
          series: TIERS,
          format: format.percent,
          max: 1,
          note: "Of tiers with a limit.",
        }),
        ({ to }) => each(TIERS, (tier) => occupancy(to, tier)),
      ],
      [
        new Chart(place, {
          title: "Lateness of the event loop",
          series: LAG,
          format: format.duration,
          topMin: 1e-3,
          note: "What every request waits before it is looked at.",
        }),
        ({ to }) => ({ lag: to?.loop_lag_p99_s ?? null }),
      ],
    ];
  }

  draw() {
    const steps = this.history.steps(this.seconds, STEPS);
    for (const [chart, values] of this.charts) {
      chart.show(
        steps.map((step) => ({ t: step.t, values: values(step) })),
        this.seconds,
      );
    }
  }
}
