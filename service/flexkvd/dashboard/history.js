// The samples of the last minutes, and what follows from two of them. Owns no clock: time is the daemon's.

const SAMPLES_MAX = 900;
const TIERS = ["hbm", "dram", "ssd", "s3"];

/** Whether both can be of one life of the daemon: running totals never fall. */
function ofOneLife(earlier, later) {
  const matched = (sample) => (sample.matched?.hit ?? 0) + (sample.matched?.miss ?? 0);
  const moved = (sample) => Object.values(sample.links ?? {}).reduce((sum, link) => sum + link.bytes, 0);
  return matched(later) >= matched(earlier) && moved(later) >= moved(earlier);
}

export class History {
  samples = [];

  get latest() {
    return this.samples.at(-1) ?? null;
  }

  /** What the daemon kept while nobody looked. */
  replace(samples) {
    this.samples = [];
    for (const sample of samples) this.add(sample);
  }

  add(sample) {
    const latest = this.latest;
    if (latest && sample.t <= latest.t) return; // known already
    if (latest && !ofOneLife(latest, sample)) this.samples = []; // totals begin anew
    this.samples.push(sample);
    if (this.samples.length > SAMPLES_MAX) this.samples.shift();
  }

  /** The newest sample and the one about `seconds` before it, or null. */
  recent(seconds) {
    const to = this.latest;
    if (!to) return null;
    let from = null;
    for (let at = this.samples.length - 2; at >= 0; at -= 1) {
      from = this.samples[at];
      if (to.t - from.t >= seconds - 0.5) break;
    }
    return from && { from, to };
  }

  /**
   * The last `seconds` in `steps` equal steps, oldest first: {t, from, to} with the samples at both ends of each, which
   * are null where there is none. Steps lie on fixed times, so that a curve moves and does not tremble.
   */
  steps(seconds, steps) {
    const size = seconds / steps;
    const last = new Map();
    for (const sample of this.samples) last.set(Math.floor(sample.t / size), sample);
    const end = this.latest ? Math.floor(this.latest.t / size) : 0;
    return Array.from({ length: steps }, (_, at) => {
      const number = end - steps + 1 + at;
      return { t: (number + 1) * size, from: last.get(number - 1) ?? null, to: last.get(number) ?? null };
    });
  }
}

/** How much `of(sample)` grew per second, or null. */
export function rate({ from, to }, of) {
  if (!from || !to || to.t <= from.t) return null;
  return Math.max(0, (of(to) ?? 0) - (of(from) ?? 0)) / (to.t - from.t);
}

/** Of the blocks that were loaded or missed in a step, the share that came from each tier; null if there were none. */
export function hitShares({ from, to }) {
  if (!from || !to) return null;
  const missed = to.matched.miss - from.matched.miss;
  const hits = Object.fromEntries(
    TIERS.map((tier) => [tier, (to.tiers[tier]?.hits ?? 0) - (from.tiers[tier]?.hits ?? 0)]),
  );
  const page = hits.dram + hits.ssd + hits.s3; // rows of HBM are not blocks: they have a ratio of their own
  const whole = page + missed;
  if (whole <= 0) return null;
  return { dram: hits.dram / whole, ssd: hits.ssd / whole, s3: hits.s3 / whole, all: page / whole };
}
