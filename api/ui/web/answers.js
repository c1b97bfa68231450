// First answers, in a line each, made of what the daemon says.
import { many, millis, plural, shown } from './format.js';

export const usageFields = ['requests', 'prompt_tokens', 'engine_tokens', 'prefix_tokens', 'reused_tokens', 'computed_tokens', 'saved_ms', 'evictions'];

export const sum = (list) => (list ?? []).reduce((n, v) => n + (v ?? 0), 0);

// cut is the part of a history that a range covers, and what it adds up to.
export function cut(history, seconds) {
  if (!history?.at?.length) return null;
  const now = history.at.at(-1); // by the clock of the daemon
  const first = history.at.findIndex((t) => t > now - seconds);
  const from = first < 0 ? history.at.length : first;
  const at = history.at.slice(from);
  const series = Object.fromEntries(Object.entries(history.series ?? {}).map(([k, v]) => [k, (v ?? []).slice(from)]));
  const totals = Object.fromEntries([...new Set([...usageFields, ...Object.keys(series)])].map((f) => [f, sum(series[f])]));
  return { at, series, totals, step: history.step_seconds, seconds: at.length * history.step_seconds };
}

// usageOf is what a window adds up to as a row of usage; null where no prompt was served in
// it, or its daemon keeps no reasons.
export function usageOf(window) {
  const t = window?.totals;
  if (!t?.prompt_tokens || !('missed_unknown' in window.series)) return null;
  const missed = Object.fromEntries(Object.keys(window.series).filter((f) => f.startsWith('missed_')).map((f) => [f.slice(7), t[f]]));
  return { ...t, missed, seam_tokens: missed.seam ?? 0 };
}

export function byName(stats) {
  return Object.fromEntries((stats?.items ?? []).map((c) => [c.name, c.value]));
}

export function enginesAnswer(profiles) {
  const engines = [...new Set(profiles.flatMap((p) => p.engines ?? []))];
  if (!engines.length) return 'none is attached';
  return engines.slice(0, 3).map((e) => shown(e, 40)).join(', ') + (engines.length > 3 ? ` and ${engines.length - 3} more` : '');
}

// missedOf are the reasons of a row of usage with their tokens, the largest first.
export const missedOf = (row) => Object.entries(row.missed ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);

export function canaryAnswer(canaries) {
  const off = canaries.filter((c) => c.off).length;
  const compared = sum(canaries.map((c) => c.compared)), failed = sum(canaries.map((c) => c.failed));
  if (off) return `no: splicing is off for ${plural(off, 'profile')}`;
  if (!compared) return 'nothing has been compared';
  return failed ? `no: ${many(failed)} of ${many(compared)} comparisons beyond the bound` : `yes: ${plural(compared, 'comparison')}, none beyond the bound`;
}

export const diskCheck = (status) => status?.checks?.find((x) => x.name === 'disk');

export function diskAnswer(status, c) {
  const check = diskCheck(status);
  if (c.disk_read === undefined) return status ? 'there is none' : null;
  if (check && check.state !== 'ok') return shown(check.detail || 'degraded', 120);
  return c.disk_read > 0 ? `no call hangs, ${millis(c.disk_read_nanos / 1e6 / c.disk_read)} a read on average` : 'nothing has been read from it';
}

// series adds up the series of one name in metrics, as text, of those labels or of any;
// undefined where there is none.
export function series(text, name, labels = '[^}]*') {
  let total;
  for (const m of (text ?? '').matchAll(new RegExp(`^${name}(?:\\{${labels}\\})? ([-+.e0-9]+)$`, 'gm'))) total = (total ?? 0) + Number(m[1]);
  return total;
}

// quantile is a time in ms that a share of a histogram's observations did not pass, by its
// buckets: the upper bound of the one that it falls into.
export function quantile(text, name, label, share) {
  const buckets = [];
  for (const m of (text ?? '').matchAll(new RegExp(`^${name}_bucket\\{${label},le="([^"]+)"\\} ([.e0-9]+)$`, 'gm'))) buckets.push([m[1] === '+Inf' ? Infinity : Number(m[1]), Number(m[2])]);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (!all) return NaN;
  return buckets.find((b) => b[1] >= share * all)[0] * 1000;
}
