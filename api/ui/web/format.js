// Numbers, times and names as people read them. Every number comes out with its unit.

const bad = (n) => typeof n !== 'number' || !Number.isFinite(n);

// three significant digits, without an exponent
function short(n) {
  const size = Math.abs(n);
  if (size >= 100 || n === 0) return String(Math.round(n));
  if (size >= 10) return n.toFixed(1).replace(/\.0$/, '');
  if (size >= 1) return n.toFixed(2).replace(/\.?0+$/, '');
  return String(Number(n.toPrecision(2)));
}

export function count(n) {
  if (bad(n)) return '–';
  return Number.isInteger(n) ? n.toLocaleString('en') : short(n);
}

// A count that may be large: 12,345 in full, 1.23 million short.
export function many(n) {
  if (bad(n)) return '–';
  if (Math.abs(n) < 100) return count(n);
  if (Math.abs(n) < 1e6) return count(Math.round(n));
  if (Math.abs(n) < 1e9) return `${short(n / 1e6)} million`;
  return `${short(n / 1e9)} billion`;
}

export const tokens = (n) => (bad(n) ? '–' : `${many(n)} ${n === 1 ? 'token' : 'tokens'}`);

export function plural(n, one, more = `${one}s`) {
  return bad(n) ? '–' : `${many(n)} ${n === 1 ? one : more}`;
}

export function bytes(n) {
  if (bad(n)) return '–';
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let size = Math.abs(n), i = 0;
  while (size >= 1024 && i < units.length - 1) { size /= 1024; i++; }
  return `${n < 0 ? '−' : ''}${short(size)} ${units[i]}`;
}

export const perSecond = (n) => (bad(n) ? '–' : `${bytes(n)}/s`);

// A span of time given in milliseconds.
export function millis(n) {
  if (bad(n)) return '–';
  const size = Math.abs(n), sign = n < 0 ? '−' : '';
  if (size === 0) return '0 ms';
  if (size < 1) return `${sign}${short(size * 1000)} µs`;
  if (size < 1000) return `${sign}${short(size)} ms`;
  if (size < 120e3) return `${sign}${short(size / 1000)} s`;
  if (size < 7200e3) return `${sign}${short(size / 60e3)} min`;
  if (size < 48 * 3600e3) return `${sign}${short(size / 3600e3)} h`;
  return `${sign}${short(size / 86400e3)} days`;
}

// A share of 0 to 1. What is not all does not read as all, nor what is something as nothing.
export function percent(share) {
  if (bad(share)) return '–';
  const p = share * 100;
  if (p > 0 && p < 0.1) return '< 0.1 %';
  if (p < 100 && p > 99.9) return '> 99.9 %';
  return `${p.toFixed(1)} %`;
}

export const ratio = (part, whole) => (whole > 0 ? part / whole : NaN);

const known = (iso) => {
  const at = iso instanceof Date ? iso : new Date(iso ?? NaN);
  return Number.isNaN(at.getTime()) || at.getFullYear() < 1971 ? null : at;
};

const two = (n) => String(n).padStart(2, '0');

export function clock(at) {
  at = known(at);
  return at ? `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` : '–';
}

// The time of day, with the date where that is not today.
export function time(iso, now = new Date()) {
  const at = known(iso);
  if (!at) return '–';
  const date = at.toDateString() === now.toDateString() ? '' : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `;
  return date + clock(at);
}

export const exact = (iso) => known(iso)?.toISOString() ?? '';

// A span as one says it: no more than its largest unit, and minutes beside hours.
function coarse(ms) {
  const s = Math.round(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60);
  if (s < 120) return `${s} s`;
  if (m < 120) return `${m} min`;
  if (h < 48) return `${h} h${h < 12 && m % 60 ? ` ${m % 60} min` : ''}`;
  return `${Math.floor(h / 24)} days`;
}

export function ago(iso, now = Date.now()) {
  const at = known(iso);
  if (!at) return '–';
  const ms = now - at.getTime();
  if (ms < -1500) return `in ${coarse(-ms)}`;
  if (ms < 1500) return 'just now';
  return `${coarse(ms)} ago`;
}

export const shortKey = (key) => (key ? `${String(key).slice(0, 12)}…` : '–');

// What clients called themselves, made harmless to read: control characters and those that
// turn the direction of text are shown as their code. Nothing is longer than `most`.
export function shown(text, most = 200) {
  const all = String(text ?? '');
  const cut = all.length > most ? all.slice(0, most) + '…' : all;
  return cut.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
