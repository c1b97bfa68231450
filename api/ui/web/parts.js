// Pieces that several pages are made of.
import { html, useEffect, useRef, useState } from './vendor/preact.js';
import { on } from './daemon.js';
import { ago, bytes, exact, percent, plural, ratio, shortKey, shown, time, tokens } from './format.js';
import { poolNames, sources, tierLetters, tierName, tiers } from './words.js';

export function useRoute() {
  const [route, set] = useState(parseRoute);
  useEffect(() => {
    const turn = () => set(parseRoute());
    addEventListener('hashchange', turn);
    return () => removeEventListener('hashchange', turn);
  }, []);
  return route;
}

// #/segments/KEY?tenant=a is the page segments, the rest KEY, and its parameters.
export function parseRoute() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [page, ...rest] = path.split('/').map((s) => { try { return decodeURIComponent(s); } catch { return s; } });
  return { page: page || 'overview', rest, params: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(page, rest, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== '' && v !== undefined && v !== null));
  return `#/${page}${rest ? `/${encodeURIComponent(rest)}` : ''}${query.size ? `?${query}` : ''}`;
}

export function go(page, params) { location.hash = link(page, '', params); }

// What somebody else chose to be called: text of its own direction, cut where it is long.
export const Name = ({ text, none = '(none)', most = 64 }) => (text
  ? html`<bdi class="name" title=${shown(text, 400)}>${shown(text, most)}</bdi>`
  : html`<span class="muted">${none}</span>`);

export const Key = ({ of, object }) => (of
  ? html`<a class="key" href=${link(object === 'checkpoint' ? 'checkpoints' : 'segments', of)} title=${shown(of)}>${shown(shortKey(of), 20)}</a>`
  : html`<span class="muted" title="What advice is about has no key yet">–</span>`);

export const Time = ({ at, title = '' }) => html`<time datetime=${exact(at)} title=${`${title} ${exact(at)}`.trim()}>${time(at)}</time>`;
export const Ago = ({ at, title = '' }) => html`<time datetime=${exact(at)} title=${`${title} ${exact(at)}`.trim()}>${ago(at)}</time>`;

// One number with what it means.
export const Stat = ({ id, label, value, note, title, href, estimate }) => html`
  <div class="stat" id=${id} title=${title}>
    <dt>${href ? html`<a href=${href}>${label}</a>` : label}${estimate && html` <span class="tag" title="Computed from measured speeds, not measured itself">estimate</span>`}</dt>
    <dd><span class="big">${value}</span>${note && html`<span class="note">${note}</span>`}</dd>
  </div>`;

export const Stats = ({ children }) => html`<dl class="stats">${children}</dl>`;

// A section with a heading that a question may lead to. `about` says what is to be seen.
export function Panel({ id, title, about, aside, children }) {
  const ref = useRef(null);
  useEffect(() => {
    const show = () => {
      if (!id || parseRoute().params.show !== id) return;
      ref.current?.scrollIntoView({ block: 'start' });
      ref.current?.querySelector('h2')?.focus({ preventScroll: true });
    };
    show();
    addEventListener('hashchange', show);
    return () => removeEventListener('hashchange', show);
  }, [id]);
  return html`<section class="panel" id=${id} ref=${ref} aria-labelledby=${id && `${id}-title`}>
    <header><h2 id=${id && `${id}-title`} tabindex="-1">${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</header>
    ${about && html`<p class="about">${about}</p>`}
    ${children}
  </section>`;
}

export const Absent = ({ what }) => html`<p class="absent">This daemon does not have ${what}: it is of a version before that, or it was built without it.</p>`;

// What stands in the place of data that is not there: a reason, never an empty page.
export function Missing({ from, what }) {
  const { trouble, data } = from;
  if (data && trouble?.kind === 'problem') return html`<p class="trouble" role="status">Not refreshed: ${shown(trouble.message, 400)}</p>`;
  if (data) return null;
  if (!trouble) return html`<p class="muted" aria-busy="true">Loading ${what}…</p>`;
  if (trouble.kind === 'absent') return html`<${Absent} what=${what} />`;
  if (trouble.kind === 'locked') return html`<p class="muted">Waiting for a token.</p>`;
  if (trouble.kind === 'down') return html`<p class="muted">No data yet: the daemon does not answer.</p>`;
  return html`<p class="trouble" role="status">${shown(trouble.message, 400)}</p>`;
}

export const Refreshed = ({ from, every }) => html`<span class="refreshed muted">
  ${from.at ? html`as of <time datetime=${exact(from.at)}>${time(from.at)}</time>${every ? `, every ${every} s` : ''} ` : ''}
  <button type="button" class="small" onClick=${from.reload}>Refresh</button></span>`;

// A bar of parts, each with a name, so that its title and its legend tell what colours do.
export function Bar({ parts, total, label, tall }) {
  const whole = Math.max(total ?? parts.reduce((n, p) => n + p.value, 0), 1e-9);
  const told = parts.filter((p) => p.value > 0);
  const say = `${label}: ${told.map((p) => `${p.name} ${p.text ?? percent(p.value / whole)}`).join(', ') || 'nothing'}`;
  return html`<div class=${`bar${tall ? ' tall' : ''}`} role="img" aria-label=${say} title=${say}>
    ${told.map((p) => html`<span class=${`part ${p.kind}`} style=${{ width: `${Math.min(100, (100 * p.value) / whole)}%` }}>
      ${tall && p.letter && p.value / whole > 0.03 ? html`<b aria-hidden="true">${p.letter}</b>` : ''}</span>`)}
  </div>`;
}

// A share against its whole: used of a capacity, a quota.
export const Meter = ({ value, whole, label, warn }) => html`<div class=${`meter${warn ? ' warn' : ''}`} role="img" aria-label=${`${label}: ${percent(ratio(value, whole))}`} title=${label}>
  <span style=${{ width: `${Math.min(100, 100 * (ratio(value, whole) || 0))}%` }}></span></div>`;

export const sourceParts = (row) => sources.map((s) => ({ kind: s.id, name: s.name, letter: s.letter, value: row[s.field] ?? 0, text: tokens(row[s.field] ?? 0) }));

export const SourceLegend = ({ row }) => html`<ul class="legend">${sources.map((s) => html`
  <li title=${s.about}><span class=${`swatch part ${s.id}`}><b aria-hidden="true">${s.letter}</b></span> ${s.name}${row && html`<span class="muted"> ${percent(ratio(row[s.field], row.prompt_tokens))}</span>`}</li>`)}</ul>`;

// Hit ratios in tokens, by their one definition.
export const hitRatio = (u) => ratio(u.prefix_tokens + u.reused_tokens, u.prompt_tokens - u.engine_tokens);
export const wholeHitRatio = (u) => ratio(u.engine_tokens + u.prefix_tokens + u.reused_tokens, u.prompt_tokens);
export const ratioTitle = 'Tokens served from the daemon (saved prefixes and spliced segments), of all prompt tokens that the engine did not have itself';

export const Tiers = ({ list }) => html`<span class="tiers">${(list ?? []).map((t) => html`<abbr class=${`tier ${tiers[t] ? t : ''}`} title=${tierName(t)}>${tierLetters[t] ?? '?'}<span class="hidden"> ${shown(t, 12)}</span></abbr> `)}</span>`;

export function Pools({ pools }) {
  if (!pools?.length) return html`<p class="muted">No pool is open yet.</p>`;
  return html`<ul class="pools">${pools.map((p) => {
    const free = Math.max(0, p.capacity_bytes - p.used_bytes);
    const held = p.leased_bytes + p.pending_bytes + p.quarantined_bytes;
    const parts = [
      { kind: 'leased', name: 'leased by clients', value: p.leased_bytes, text: bytes(p.leased_bytes) },
      { kind: 'pending', name: 'being written', value: p.pending_bytes, text: bytes(p.pending_bytes) },
      { kind: 'quarantined', name: 'held back until a client lets go', value: p.quarantined_bytes, text: bytes(p.quarantined_bytes) },
      { kind: 'used', name: 'may be evicted', value: Math.max(0, p.used_bytes - held), text: bytes(Math.max(0, p.used_bytes - held)) },
    ];
    const whole = Math.max(p.capacity_bytes, p.used_bytes);
    return html`<li>
      <div class="line"><strong>${tierName(p.tier)}</strong> <span class="muted">${poolNames[p.name] ?? shown(p.name, 20)}${p.device ? html` on <code>${shown(p.device, 16)}</code>` : ''}</span>
        <span class="right" title="Bytes used, of the budget of this pool">${bytes(p.used_bytes)} of ${p.capacity_bytes ? bytes(p.capacity_bytes) : 'no budget'}</span></div>
      <${Bar} parts=${parts} total=${whole} label=${`${tierName(p.tier)}, ${p.name}`} />
      <div class="line small muted"><span title="Objects in this pool">${plural(p.objects, p.name === 'private' ? 'checkpoint' : 'segment')}</span>
        <span title="Clients read it now; it cannot leave">${bytes(p.leased_bytes)} leased</span>
        ${p.pending_bytes > 0 && html`<span title="Reserved by a writer and not committed">${bytes(p.pending_bytes)} being written</span>`}
        ${p.quarantined_bytes > 0 && html`<span title="Of leases that expired, until the client lets go">${bytes(p.quarantined_bytes)} held back</span>`}
        <span class="right">${bytes(free)} free</span></div>
    </li>`;
  })}</ul>`;
}

// A field shows what the address says when there is a new one, even of the same words: what
// was written and not searched for goes with Clear. In between it is the reader's, and stays
// while the page is drawn anew.
function Field({ f, params }) {
  const ref = useRef(null);
  useEffect(() => { ref.current.value = params[f.name] ?? ''; }, [params, f.options?.length]);
  return html`<label title=${f.title}>${f.label}
    ${f.options
      ? html`<select name=${f.name} ref=${ref}><option value="">${f.none ?? 'all'}</option>${f.options.map((o) => html`<option value=${o.value ?? o}>${o.label ?? o}</option>`)}</select>`
      : html`<input name=${f.name} ref=${ref} placeholder=${f.hint ?? ''} maxlength=${f.most ?? 128} spellcheck=${false} autocomplete="off" />`}
  </label>`;
}

// Fields that pick rows. Each change is a new address, so that a view can be sent to somebody.
export function Filters({ page, params, fields }) {
  const submit = (e) => {
    e.preventDefault();
    const next = {};
    for (const [k, v] of new FormData(e.currentTarget)) next[k] = String(v).trim();
    go(page, next);
  };
  return html`<form class="filters" role="search" onSubmit=${submit} onChange=${(e) => e.target.tagName === 'SELECT' && e.currentTarget.requestSubmit()}>
    ${fields.map((f) => html`<${Field} f=${f} params=${params} key=${f.name} />`)}
    <button type="submit">Search</button>
    ${fields.some((f) => params[f.name]) && html`<a href=${link(page)}>Clear</a>`}
  </form>`;
}

// Names of tenants and profiles for fields, from lists that are there.
export const profileOptions = (profiles) => (profiles?.items ?? []).map((p) => ({ value: p.id, label: `${shown(p.model, 40)} (${p.id})` }));

// Redraws what tells how long ago something was.
export function useClock(seconds = 5) {
  const [, turn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) turn((n) => n + 1); }, seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
}

// Draws anew when something has happened, and not for each of a thousand things in a second.
export function useEvents() {
  const [, turn] = useState(0);
  useEffect(() => {
    let timer = 0;
    const soon = () => { timer ||= setTimeout(() => { timer = 0; turn((n) => n + 1); }, 200); };
    const offs = ['event', 'events'].map((name) => on(name, soon));
    return () => { offs.forEach((off) => off()); clearTimeout(timer); };
  }, []);
}

// One event in words: the daemon's own where it has some.
export function EventText({ e }) {
  return html`<span class=${`kind ${/^[a-z]+$/.test(e.kind) ? e.kind : ''}`}>${shown(e.kind, 20)}</span> ${e.key && html`<${Key} of=${e.key} object=${e.object} /> `}${
    e.text ? html`<span class="wrap">${shown(e.text, 300)}</span>` : html`<span>${[e.object && shown(e.object, 20), e.tokens > 0 && tokens(e.tokens), e.bytes > 0 && bytes(e.bytes), e.client && shown(e.client, 40), e.why && shown(e.why, 200), e.policy && `by ${shown(e.policy, 40)}`].filter(Boolean).join(', ')}</span>`}`;
}
