// The daemon as this page sees it: requests to its REST, whether it answers, and the token
// that it may want. URLs are relative to the page, so that any path prefix works.
import { useEffect, useState, useRef } from './vendor/preact.js';

const base = new URL('../api/v1/', location.href.split(/[?#]/)[0]);
const patience = 10000; // ms for one answer
const beat = 5000; // ms between looks at the status
const retry = 2000; // while nothing answers

// phase: loading, up, down (nothing answers), locked (it wants a token), refused (it answers
// nobody from here)
export const daemon = { phase: 'loading', status: null, lastGood: null, why: '', token: readToken(), restarted: null };

const listeners = new Map(); // name -> set of functions
export function on(name, fn) {
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(fn);
  return () => listeners.get(name).delete(fn);
}
export function tell(name, what) {
  for (const fn of [...(listeners.get(name) ?? [])]) fn(what);
}

function readToken() {
  try { return sessionStorage.getItem('spliced-token') ?? ''; } catch { return ''; }
}

// The token lives as long as the tab does, and goes nowhere but into the header.
export function setToken(token) {
  daemon.token = token;
  try {
    if (token) sessionStorage.setItem('spliced-token', token); else sessionStorage.removeItem('spliced-token');
  } catch { /* kept for this page only */ }
  phaseIs('loading', '');
  look();
  tell('again');
}

function phaseIs(phase, why) {
  if (daemon.phase === phase && daemon.why === why) return;
  const before = daemon.phase;
  daemon.phase = phase;
  daemon.why = why;
  tell('daemon');
  if (phase === 'up' && (before === 'down' || before === 'refused')) tell('again');
}

export class Trouble extends Error {
  constructor(kind, message, problem) {
    super(message);
    this.kind = kind; // absent: the daemon has no such path; missing: no such object; down; locked; problem
    this.problem = problem;
  }
}

export function url(path, params = {}) {
  const u = new URL(path, base);
  for (const [k, v] of Object.entries(params)) if (v !== '' && v !== null && v !== undefined) u.searchParams.set(k, v);
  return u;
}

export const headers = () => (daemon.token ? { Authorization: `Bearer ${daemon.token}` } : {});

// fail makes a Trouble of an answer that is none, and notes what it says of the daemon.
export async function fail(answer, path) {
  let problem = null;
  try { problem = await answer.json(); } catch { /* not of the daemon */ }
  const detail = problem?.detail ?? '';
  const rest = !path.startsWith('../'); // what is beside it may want another token
  if (answer.status === 403 && path === 'status' && problem?.code !== 'unauthorized') {
    phaseIs('refused', detail);
    return new Trouble('locked', detail, problem);
  }
  if (rest && (answer.status === 401 || (answer.status === 403 && problem?.code === 'unauthorized'))) {
    phaseIs('locked', daemon.token ? 'The token was not accepted.' : 'This daemon answers only to who has a token.');
    return new Trouble('locked', detail || 'a token is needed', problem);
  }
  if (answer.status === 404 && (!problem || /^no such path/.test(detail))) return new Trouble('absent', `this daemon has no ${path}`, problem);
  if (answer.status === 404) return new Trouble('missing', detail, problem);
  if (!problem && answer.status >= 500) {
    phaseIs('down', `a proxy answers ${answer.status} in its place`);
    return new Trouble('down', `status ${answer.status}`);
  }
  const errors = (problem?.errors ?? []).map((e) => `${e.parameter}: ${e.detail}`);
  return new Trouble('problem', [detail || `status ${answer.status}`, ...errors].join('; '), problem);
}

export async function get(path, params, { text = false, signal } = {}) {
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), patience);
  const stop = () => limit.abort();
  signal?.addEventListener('abort', stop);
  try {
    const answer = await fetch(url(path, params), { headers: headers(), signal: limit.signal, cache: 'no-store', redirect: 'error' });
    if (!answer.ok) throw await fail(answer, path);
    const data = text ? await answer.text() : await answer.json();
    daemon.lastGood = new Date();
    phaseIs('up', '');
    return data;
  } catch (e) {
    if (e instanceof Trouble) throw e;
    if (signal?.aborted) throw new Trouble('stopped', 'stopped');
    if (e instanceof SyntaxError) throw new Trouble('problem', `${path}: the answer is no JSON`);
    phaseIs('down', limit.signal.aborted ? `no answer within ${patience / 1000} s` : 'the connection was refused or broke');
    throw new Trouble('down', daemon.why);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
  }
}

// look asks for the status, which is also how the page sees that the daemon is there.
let looking = null, lookTimer = 0;
export function look() {
  clearTimeout(lookTimer);
  looking ??= get('status').then((status) => {
    const before = daemon.status;
    daemon.status = status;
    if (before && before.boot_epoch !== status.boot_epoch) {
      daemon.restarted = status.started;
      absent.clear();
      tell('restarted');
      tell('again');
    }
    tell('daemon');
  }, () => {}).finally(() => {
    looking = null;
    if (!document.hidden) lookTimer = setTimeout(look, daemon.phase === 'down' ? retry : beat);
  });
  return looking;
}

document.addEventListener('visibilitychange', () => {
  if (document.hidden) { clearTimeout(lookTimer); return; }
  look();
  tell('again');
});

// What the daemon does not have is not asked for again before it was restarted.
const absent = new Set();

export function useDaemon() {
  const [, turn] = useState(0);
  useEffect(() => on('daemon', () => turn((n) => n + 1)), []);
  return daemon;
}

// useData keeps what a path answers: asked for again every `every` seconds, soon after an
// event of `kinds`, and when the daemon is back. Old data stays while there is no newer.
// The answer of a path or of parameters that are not wanted any more is dropped.
export function useData(path, params = {}, { every = 10, kinds = [], gap = 5, text = false } = {}) {
  const name = path && url(path, params).href;
  const [state, set] = useState({ name: null });
  const reload = useRef(() => {});
  useEffect(() => {
    if (!path) return undefined;
    const ended = new AbortController();
    let timer = 0, busy = false, again = false, last = 0;
    const root = path.replace(/\/.*$/, '/'); // of one object: another path than that of the listing
    const load = async () => {
      clearTimeout(timer);
      if (busy) { again = true; return; }
      if (absent.has(root)) { set({ name, trouble: new Trouble('absent', root) }); return; }
      busy = true;
      last = Date.now();
      try {
        const data = await get(path, params, { text, signal: ended.signal });
        if (!ended.signal.aborted) set({ name, data, at: new Date() });
      } catch (trouble) {
        if (trouble.kind === 'absent') absent.add(root);
        if (!ended.signal.aborted) set((old) => ({ name, data: old.name === name && trouble.kind !== 'missing' ? old.data : undefined, at: old.at, trouble }));
      }
      busy = false;
      if (ended.signal.aborted) return;
      if (again) { again = false; soon(); } else if (every) timer = setTimeout(tick, every * 1000);
    };
    const soon = () => { clearTimeout(timer); timer = setTimeout(tick, Math.max(0, last + gap * 1000 - Date.now())); };
    const tick = () => { if (document.hidden || daemon.phase !== 'up') timer = setTimeout(tick, every * 1000 || 5000); else load(); };
    const offs = [on('again', load)];
    if (kinds.length) offs.push(on('event', (e) => { if (kinds.includes(e.kind)) soon(); }));
    reload.current = load;
    load();
    return () => { ended.abort(); clearTimeout(timer); offs.forEach((off) => off()); };
  }, [name]);
  return { ...(state.name === name ? state : {}), reload: () => reload.current() };
}
