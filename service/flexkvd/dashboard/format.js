// Numbers as people read them. Owns units and rounding; the same number always gives the same text.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const UNKNOWN = "–";
const COUNT_EXACT_MAX = 99_999;

const exact = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** Three significant digits, and no more than there are: 0.42, 4.2, 42.1, 421. */
function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : digits(size)} ${BYTE_UNITS[unit]}`;
}

export const bytesPerSecond = (value) => (known(value) ? `${bytes(value)}/s` : UNKNOWN);

export function count(value) {
  if (!known(value)) return UNKNOWN;
  return Math.abs(value) <= COUNT_EXACT_MAX ? exact.format(Math.round(value)) : compact.format(value);
}

export function perSecond(value) {
  if (!known(value)) return UNKNOWN;
  return `${value < 10 && value !== 0 ? digits(value) : count(value)}/s`;
}

export const percent = (value) => (known(value) ? `${(100 * value).toFixed(value >= 0.9995 ? 0 : 1)} %` : UNKNOWN);

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (size < 1) return `${digits(seconds * 1e3)} ms`;
  if (size < 120) return `${digits(seconds)} s`;
  if (size < 7200) return `${Math.round(seconds / 60)} min`;
  if (size < 172_800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86_400).toFixed(1)} d`;
}

/** How long ago, in whole units: an age that is polled would only pretend to more. */
export function age(seconds) {
  if (!known(seconds)) return UNKNOWN;
  return seconds < 1 ? "now" : seconds < 120 ? `${Math.round(seconds)} s` : duration(seconds);
}

export const shortKey = (key) => `${key.slice(0, 8)}…${key.slice(-4)}`;

export const ratio = (part, whole) => (known(part) && known(whole) && whole > 0 ? part / whole : null);
