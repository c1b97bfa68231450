// What happens in the daemon, as it happens: a stream of server-sent events, read with fetch
// and not with EventSource, since that can send no token and tells no status. Where a stream
// does not get through, the same is asked for every few seconds.
import { daemon, on, tell, url, headers, fail, get } from './daemon.js';

const kept = 500; // events
const most = 1 << 20; // characters of one event
const silence = 15000; // ms until a stream that has not begun is given up
const pollEvery = 3000;

// mode: off (not yet), live, polling, absent
export const events = { mode: 'off', list: [], lost: 0, version: 0 };
let after = null; // the last event that is known; null = not one yet
let running = null, timer = 0, wait = 1000, polls = false;

function modeIs(mode) {
  if (events.mode === mode) return;
  events.mode = mode;
  tell('events');
}

function take(e) {
  if (!e || typeof e.id !== 'number' || typeof e.kind !== 'string') return;
  after = Math.max(after ?? 0, e.id);
  events.list.unshift(e);
  if (events.list.length > kept) events.list.length = kept;
  events.version++;
  tell('event', e);
}

// Some were missed: this page was slow, or they are of an earlier start of the daemon, of
// which it is told in another way.
function lose(e) {
  if (e?.why === 'restarted') return;
  events.lost += Number(e?.lost) || 1;
  tell('events');
}

function read(block) {
  let kind = 'message', id = '';
  const data = [];
  for (const line of block.split('\n')) {
    const cut = line.indexOf(':');
    if (cut === 0) continue;
    const name = cut < 0 ? line : line.slice(0, cut);
    const value = cut < 0 ? '' : line.slice(cut + 1).replace(/^ /, '');
    if (name === 'event') kind = value;
    if (name === 'id') id = value;
    if (name === 'data') data.push(value);
  }
  if (/^\d{1,16}$/.test(id)) after = Number(id); // also where none passes yet
  if (!data.length) return;
  let what;
  try { what = JSON.parse(data.join('\n')); } catch { return; }
  if (kind === 'lost') lose(what); else take(what);
}

async function poll(signal) {
  for (let pages = 0; pages < 10; pages++) {
    const page = await get('events', { poll: 1, after, limit: 200 }, { signal });
    for (const e of page.items ?? []) {
      if (e.kind === 'lost') lose(e); else take(e);
    }
    if (!page.next || after === null) return;
  }
}

async function stream(signal) {
  const limit = new AbortController();
  const stop = () => limit.abort();
  signal.addEventListener('abort', stop);
  let begun = false;
  const slow = setTimeout(() => { if (!begun) { polls = true; limit.abort(); } }, silence);
  try {
    const answer = await fetch(url('events', { after }), { headers: { ...headers(), Accept: 'text/event-stream' }, signal: limit.signal, cache: 'no-store', redirect: 'error' });
    if (answer.status === 503) { polls = true; return; } // as many follow as may
    if (!answer.ok) throw await fail(answer, 'events');
    if (!/^text\/event-stream/.test(answer.headers.get('Content-Type') ?? '')) { polls = true; return; }
    begun = true;
    wait = 1000;
    modeIs('live');
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replaceAll('\r\n', '\n').split('\n\n');
      rest = blocks.pop();
      blocks.forEach(read);
      if (rest.length > most) { lose(null); return; }
    }
  } finally {
    clearTimeout(slow);
    signal.removeEventListener('abort', stop);
  }
}

async function run() {
  clearTimeout(timer);
  if (running || document.hidden || events.mode === 'absent' || daemon.phase === 'locked') return;
  running = new AbortController();
  const { signal } = running;
  let pause = wait;
  try {
    if (polls || after === null) await poll(signal); // the first time for what was before
    if (polls) { modeIs('polling'); pause = pollEvery; } else await stream(signal);
  } catch (e) {
    if (e.kind === 'absent') modeIs('absent');
    else if (!signal.aborted) { modeIs('off'); wait = Math.min(wait * 2, 15000); }
  }
  running = null;
  if (events.mode !== 'absent' && !document.hidden) timer = setTimeout(run, signal.aborted ? 0 : pause);
}

// A hidden page holds no connection: a browser has few of them for all its tabs.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) running?.abort(); else run();
});

export function startEvents() {
  on('again', () => { wait = 1000; run(); });
  on('restarted', () => { // ids begin anew
    after = null;
    polls = false;
    wait = 1000;
    if (events.mode === 'absent') events.mode = 'off';
    running?.abort();
    run();
  });
  run();
}
