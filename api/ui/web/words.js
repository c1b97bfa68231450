// What the daemon's words mean, for somebody who reads them the first time.
import { shown } from './format.js';

// Words that are looked up by what others say: nothing is found that is not written here.
const words = (known) => Object.assign(Object.create(null), known);

// Where tokens of a prompt came from. Letter and pattern go with each colour.
export const sources = [
  { id: 'engine', field: 'engine_tokens', letter: 'E', name: "engine's own cache", about: "The engine still had these tokens in its own prefix cache, and asked nothing of the daemon." },
  { id: 'prefix', field: 'prefix_tokens', letter: 'P', name: 'saved prefix', about: 'Continued from a checkpoint: a saved state of the same beginning of a prompt.' },
  { id: 'segment', field: 'reused_tokens', letter: 'S', name: 'spliced segments', about: 'Segments computed for other prompts, placed into this one. Tokens of seams, which are computed again, are not among them.' },
  { id: 'computed', field: 'computed_tokens', letter: 'C', name: 'computed', about: 'The engine had to compute these tokens. They are what time to first token is spent on.' },
];

export const ways = words({
  recompute: 'computed in full', prefix: 'continued from a saved prefix', splice: 'spliced from segments', replay: 'replayed from rows',
});

export const reasons = words({
  unknown: { name: 'not known', about: 'Nobody has stored these tokens since the daemon started, or so long ago that it is forgotten; what left before the last start is among them.', hint: 'Normal for new text, and behind a restart: the page of a segment has its decisions of before. If it stays high, prompts differ early (dates or ids at their beginning), or tenants, salts or models differ.' },
  evicted: { name: 'evicted', about: 'They were here, and had to leave for room or for a quota.', hint: 'More room, a larger quota, or a disk would have kept them.' },
  pending: { name: 'being written', about: 'Another request was storing them at that moment.', hint: 'Several equal prompts at once; the next one hits.' },
  removed: { name: 'removed', about: 'An operator removed them.', hint: '' },
  refused: { name: 'not admitted', about: 'There was no room beside what is in use, or the tenant is over its quota.', hint: 'Look at quotas, and at who holds leases.' },
  aborted: { name: 'writer gave up', about: 'The engine that was storing them failed or went away.', hint: '' },
  flag_only: { name: 'not of an accepted kind', about: 'There is a saved prefix, but a spliced one where only exact ones are accepted.', hint: '' },
  seam: { name: 'seam', about: 'The tokens on either side of a join, which are computed again on purpose.', hint: '' },
  new: { name: 'not asked for', about: 'No saved state was asked for: the question itself, or what follows the last segment.', hint: 'Always computed.' },
  declined: { name: 'held, and computed', about: 'They are held, and the engine chose to compute them: by its prices that was the faster way, or another part of the prompt was missing.', hint: 'Open single requests: each shows what the other ways would have cost.' },
  off: { name: 'splicing switched off', about: 'A canary or an operator has switched splicing off for this model.', hint: 'See Canary.' },
  switched_off: { name: 'splicing switched off', about: 'A canary or an operator has switched splicing off for this model.', hint: 'See Canary.' },
});

export function reasonOf(id) {
  return reasons[id] ?? { name: shown(String(id || 'no reason told').replaceAll('_', ' '), 40), about: '', hint: '' };
}

export const tiers = words({ hbm: 'GPU memory (HBM)', dram: 'memory (DRAM)', disk: 'disk', peer: 'another node', object: 'object store', none: 'nowhere' });
export const tierLetters = words({ hbm: 'H', dram: 'M', disk: 'D', peer: 'N', object: 'O' });
export const poolNames = words({ public: 'segments, shared', private: 'checkpoints, of one tenant each' });
export const levels = words({
  memory: 'A daemon that ends may lose it.', logged: 'Survives a killed daemon.', synced: 'Survives power loss.',
});
export const decided = words({
  admitted: 'came in', refused: 'was not let in', evicted: 'left', thinned: 'gave up its states and kept its rows',
  demoted: 'left memory, and is on disk', dropped: 'its copy left', advised: 'an engine was told to store it', discouraged: 'an engine was told not to store it',
});
export const eventKinds = ['published', 'evicted', 'demoted', 'promoted', 'fetched', 'request', 'canary', 'disk', 'gpu', 'attached', 'detached', 'peer', 'changed'];

// The ten questions, and where each is answered.
export const questions = [
  { id: 'ttft', ask: 'Why is time to first token not better?', to: '#/?show=why', where: 'Overview: where prompt tokens came from' },
  { id: 'ratio', ask: 'What is the hit ratio by tenant and model?', to: '#/tenants', where: 'Tenants' },
  { id: 'evicted', ask: 'Why was X evicted?', to: '#/decisions?what=evicted', where: 'Decisions: search by key' },
  { id: 'shared', ask: 'How many bytes does sharing save?', to: '#/?show=numbers', where: 'Overview: bytes saved by sharing' },
  { id: 'canary', ask: 'Is the canary fine?', to: '#/canary', where: 'Canary' },
  { id: 'disk', ask: 'Is the disk slow?', to: '#/disk', where: 'Disk' },
  { id: 'leases', ask: 'Who holds leases?', to: '#/connections?show=leases', where: 'Connections: leases' },
  { id: 'hbm', ask: 'How much HBM is used?', to: '#/gpu', where: 'GPU' },
  { id: 'engines', ask: 'Which engine of which version is attached?', to: '#/connections?show=engines', where: 'Connections: engines' },
  { id: 'restart', ask: 'What did the last restart bring back?', to: '#/disk?show=restart', where: 'Disk: last start' },
];

export const tierName = (t) => tiers[t] ?? shown(t, 24);

// What the time that a request saved is estimated by.
const savedWords = { ttft: 'by measured times to first tokens', own: 'by times to first tokens that its own process reported', prefill: 'by measured prefills', guess: 'a guess: no engine has measured its prefill' };
export const savedBy = (by) => savedWords[by] ?? 'by measured speeds';
