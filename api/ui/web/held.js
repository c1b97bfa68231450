// What is held, what was decided about it, and what happened to it.
import { html, useEffect, useRef, useState } from './vendor/preact.js';
import { get, useData } from './daemon.js';
import { events } from './events.js';
import { bytes, count, many, millis, percent, plural, shortKey, shown, tokens } from './format.js';
import { Absent, Ago, EventText, Filters, Key, Missing, Name, Panel, Refreshed, Stat, Stats, Tiers, Time, link, profileOptions, useClock, useEvents } from './parts.js';
import { Table } from './table.js';
import { byName } from './answers.js';
import { decided, eventKinds, levels, tierName } from './words.js';

const most = 200000; // rows that a page holds
const pageSize = 1000;

const segmentColumns = [
  { id: 'key', label: 'Key', title: 'Hash of model, tenant and tokens: the first 12 of 64 digits', cell: (s) => html`<${Key} of=${s.key} object="segment" />`, sort: (s) => s.key },
  { id: 'tenant', label: 'Tenant', title: 'Who may use it', cell: (s) => html`<${Name} text=${s.tenant} most=${24} />`, sort: (s) => s.tenant },
  { id: 'model', label: 'Model', title: 'The model as its engine calls it', cell: (s) => html`<${Name} text=${s.model} most=${28} />`, sort: (s) => s.model },
  { id: 'tokens', label: 'Length', num: true, title: 'Tokens of the segment', cell: (s) => tokens(s.tokens), sort: (s) => s.tokens },
  { id: 'bytes', label: 'Size', num: true, title: 'Bytes of its state, over all ranks', cell: (s) => bytes(s.bytes), sort: (s) => s.bytes },
  { id: 'tiers', label: 'Lies in', title: 'H: GPU memory, M: memory, D: disk', cell: (s) => html`<${Tiers} list=${s.tiers} />`, sort: (s) => (s.tiers ?? []).join() },
  { id: 'hits', label: 'Hits', num: true, title: 'Times that it was used', cell: (s) => plural(s.hits, 'hit'), sort: (s) => s.hits },
  { id: 'leases', label: 'Leases', num: true, title: 'Clients that read it now', cell: (s) => plural(s.leases, 'lease'), sort: (s) => s.leases },
  { id: 'used', label: 'Last used', num: true, title: 'When it was used last', cell: (s) => html`<${Ago} at=${s.last_used} />`, sort: (s) => Date.parse(s.last_used) },
  { id: 'created', label: 'Age', num: true, title: 'When it was published', cell: (s) => html`<${Ago} at=${s.created} />`, sort: (s) => Date.parse(s.created) },
  { id: 'state', label: 'State', title: 'published: found by lookups. pending: being written', cell: (s) => html`<span title=${levels[s.level]}>${shown(s.state, 20)}, ${shown(s.level, 20)}</span>`, sort: (s) => s.state },
];

const checkpointColumns = [
  { ...segmentColumns[0], title: 'Hash of the prompt up to here: the first 12 of 64 digits', cell: (c) => html`<${Key} of=${c.hash} object="checkpoint" />`, sort: (c) => c.hash },
  segmentColumns[1], segmentColumns[2],
  { id: 'kind', label: 'Kind', title: 'exact: as a full prefill. spliced: came from a splice', cell: (c) => html`${shown(c.kind, 20)}${c.thinned ? html` <span class="tag" title="Its states have left memory: only its rows are here, for what extends it">thinned</span>` : ''}`, sort: (c) => c.kind },
  { id: 'tokens', label: 'Prompt', num: true, title: 'Tokens of the prompt up to here', cell: (c) => tokens(c.tokens), sort: (c) => c.tokens },
  { id: 'rows', label: 'Own rows', num: true, title: 'Tokens whose keys and values it holds itself, the others are of those it extends', cell: (c) => tokens(c.rows), sort: (c) => c.rows },
  segmentColumns[4], segmentColumns[5],
  { id: 'children', label: 'Extended by', num: true, title: 'Checkpoints that continue from it', cell: (c) => count(c.children), sort: (c) => c.children },
  segmentColumns[7], segmentColumns[8], segmentColumns[9],
];

const kinds = {
  segments: { one: 'segment', title: 'Segments held', about: 'Pieces of prompts whose state is held: any request of the same tenant and model can use them, at any place in its prompt.', key: (s) => s.key, columns: segmentColumns },
  checkpoints: { one: 'checkpoint', title: 'Checkpoints held', about: 'Saved states at a place in a prompt: a later prompt with the same beginning continues from there.', key: (c) => `${c.hash} ${c.kind} ${c.tenant} ${c.profile}`, columns: checkpointColumns },
};

export function Segments({ route }) {
  return route.rest[0] ? html`<${Segment} id=${route.rest[0]} />` : html`<${Listing} kind="segments" params=${route.params} key="segments" />`;
}

export function Checkpoints({ route }) {
  return route.rest[0] ? html`<${Checkpoint} id=${route.rest[0]} />` : html`<${Listing} kind="checkpoints" params=${route.params} key="checkpoints" />`;
}

// hexOnly is what of a key somebody pasted can be searched for.
const hexOnly = (text) => String(text ?? '').toLowerCase().replace(/[^0-9a-f]/g, '').slice(0, 64);

// A listing of any length: a page at a time by the daemon's cursor, or all that match.
function Listing({ kind, params }) {
  const k = kinds[kind];
  const [noSearch, setNoSearch] = useState(false); // the daemon does not search this listing by key
  const [cursors, setCursors] = useState([]);
  const [all, setAll] = useState(null); // {rows, done, note}
  const loading = useRef(null);
  const prefix = hexOnly(params.key);
  const query = { tenant: params.tenant, profile: params.profile, key_prefix: noSearch ? '' : prefix };
  const name = JSON.stringify([kind, params]);
  useEffect(() => { setCursors([]); setAll(null); return () => loading.current?.abort(); }, [name]);
  const list = useData(kind, { ...query, limit: 100, cursor: cursors.at(-1) }, { every: 0 });
  const profiles = useData('profiles', {}, { every: 60 });
  useEffect(() => {
    if (list.trouble?.problem?.errors?.some((e) => e.parameter === 'key_prefix') && prefix) setNoSearch(true);
  }, [list.trouble]);
  useClock(10);
  useEvents();
  const held = (profiles.data?.items ?? []).reduce((n, p) => n + (p[kind] ?? 0), 0);
  const passes = (row) => !noSearch || !prefix || (row.key ?? row.hash).startsWith(prefix);
  const rows = (all?.rows ?? list.data?.items ?? []).filter(passes);
  const since = list.at ? events.list.filter((e) => e.object === k.one && Date.parse(e.at) > list.at.getTime()).length : 0;
  const loadAll = async () => {
    const ended = loading.current = new AbortController();
    const found = [];
    setAll({ rows: [], done: false, note: 'Loading…' });
    try {
      for (let cursor = ''; ;) {
        const page = await get(kind, { ...query, limit: pageSize, cursor }, { signal: ended.signal });
        found.push(...page.items);
        cursor = page.next;
        if (!cursor || found.length >= most) break;
        if (found.length % 5000 < pageSize) setAll({ rows: [], done: false, note: `${many(found.length)} loaded…` });
      }
      setAll({ rows: found, done: true, note: `All ${many(found.length)} loaded at once${found.length >= most ? ', as many as this page holds' : ''}: sorting is over all of them.` });
    } catch (e) {
      if (!ended.signal.aborted) setAll({ rows: found, done: true, note: `Stopped after ${many(found.length)}: ${e.message}` });
    }
  };
  const turn = (to) => { loading.current?.abort(); setAll(null); setCursors(to); };
  const busy = all && !all.done;
  return html`<${Panel} id=${kind} title=${k.title} about=${k.about} aside=${html`${since > 0 && html`<span class="muted">${plural(since, 'change')} since </span>`}<${Refreshed} from=${list} />`}>
    <${Filters} page=${kind} params=${params} fields=${[
      { name: 'key', label: 'Key begins with', title: 'The first hex digits of a key', hint: '3f9a…', most: 80 },
      { name: 'tenant', label: 'Tenant', title: 'The exact name of a tenant' },
      { name: 'profile', label: 'Model', title: 'A model and its layout', options: profileOptions(profiles.data) }]} />
    ${noSearch && prefix && html`<p class="muted">This daemon does not search ${kind} by key: only those that are loaded are searched. Load all to search all.</p>`}
    <div class="pager">
      <button type="button" disabled=${!cursors.length || busy} onClick=${() => turn([])}>First</button>
      <button type="button" disabled=${!cursors.length || busy} onClick=${() => turn(cursors.slice(0, -1))}>Previous</button>
      <button type="button" disabled=${!list.data?.next || busy || all} onClick=${() => turn([...cursors, list.data.next])}>Next</button>
      ${busy ? html`<button type="button" onClick=${() => turn(cursors)}>Stop</button>`
        : (list.data?.next || cursors.length > 0) && !all && html`<button type="button" onClick=${loadAll} title=${`Up to ${count(most)} rows, ${count(pageSize)} at a time`}>Load all that match</button>`}
      <span role="status" class="muted" id="listed">${all ? all.note : list.data && `${plural(rows.length, 'row')} on page ${cursors.length + 1}, in order of key${held ? `; ${many(held)} in memory; others are on disk only` : ''}. Sorting is within the page.`}</span>
    </div>
    ${(list.data || all) && html`<${Table} caption=${k.title} rows=${rows} rowKey=${k.key} columns=${k.columns}
      empty=${busy ? 'Loading…' : Object.values(params).some(Boolean) ? html`None is held that passes the search. ${prefix && html`It may have left: <a href=${link('decisions', '', { key: prefix })}>what was decided about it</a>.`}` : `No ${k.one} is held yet: the first request that is computed publishes some.`} />`}
    <${Missing} from=${list} what=${`the list of ${kind}`} />
  <//><${Pinned} />`;
}

// What operators have pinned, where something is.
function Pinned() {
  const pins = useData('pins', {}, { every: 30, kinds: ['changed'] });
  const rows = pins.data?.items ?? [];
  if (!rows.length) return null;
  return html`<${Panel} id="pins" title="Pinned" about="What an operator has pinned does not leave before its time." aside=${html`<${Refreshed} from=${pins} />`}>
    <${Table} caption="Pinned" rows=${rows} rowKey=${(p) => `${p.key} ${p.tenant}`} columns=${[
      { id: 'key', label: 'Key', cell: (p) => html`<${Key} of=${p.key} object=${p.object} />`, sort: (p) => p.key },
      { id: 'tenant', label: 'Tenant', cell: (p) => html`<${Name} text=${p.tenant} most=${40} />`, sort: (p) => p.tenant },
      { id: 'bytes', label: 'Size', num: true, title: 'Bytes that stay', cell: (p) => bytes(p.bytes), sort: (p) => p.bytes },
      { id: 'expires', label: 'Ends', num: true, title: 'When it may leave again', cell: (p) => html`<${Ago} at=${p.expires} />`, sort: (p) => Date.parse(p.expires) },
      { id: 'by', label: 'By', title: 'Who pinned it', cell: (p) => html`<${Name} text=${p.by} most=${40} />`, sort: (p) => p.by }]} />
  <//>`;
}

function Segment({ id }) {
  const from = useData(`segments/${encodeURIComponent(id)}`, {}, { every: 30 });
  const s = from.data;
  return html`<${Panel} id="segment" title=${`Segment ${shortKey(id)}`} aside=${html`<a href="#/segments">all segments</a>`}>
      <p><code class="wrap">${shown(id, 80)}</code></p>
      ${s ? html`<${Facts} o=${s} /><dl class="facts">
        <dt title="first: of the beginning of a prompt; mid: of any other place">Place</dt><dd>${shown(s.role, 20)}${s.primer && html`, after primer <code title=${s.primer}>${shortKey(s.primer)}</code>`}</dd>
        <dt title="Tokens that are kept; those of the seams on its sides are computed again">Kept tokens</dt><dd>${tokens(s.interior_tokens)}, ${tokens(s.head_excluded_tokens)} left out at its head, ${tokens(s.tail_excluded_tokens)} at its tail</dd>
        <dt title="Runs of memory and of the disk that it lies in">Extents</dt><dd>${plural(s.extents, 'run')} of memory, ${plural(s.disk_extents, 'run')} on disk${s.codec ? `, coded as ${shown(s.codec, 20)}` : ''}</dd>
        <dt title="What this node believes">Elsewhere</dt><dd>${plural(s.other_nodes, 'other node')}${s.object_store ? ', object store' : ''}</dd>
        <dt title="The client that filled it">Published by</dt><dd><${Name} text=${s.publisher} most=${400} /></dd></dl>
        <details><summary>${plural(s.parts?.length ?? 0, 'part')}</summary><${Table} caption="Parts" rows=${s.parts ?? []} columns=${[
          { id: 'layer', label: 'Layer', title: 'Layer of the model', cell: (p) => `layer ${p.layer}`, sort: (p) => p.layer },
          { id: 'rank', label: 'Rank', title: 'Rank of the tensor-parallel group', cell: (p) => `rank ${p.rank}`, sort: (p) => p.rank },
          { id: 'kind', label: 'Kind', title: 't: transition, s: end-state, conv: last inputs of the convolution, k and v: keys and values', cell: (p) => shown(p.kind, 10), sort: (p) => p.kind },
          { id: 'dtype', label: 'Type', cell: (p) => `${shown(p.dtype, 10)} ${(p.shape ?? []).join(' × ')}` },
          { id: 'bytes', label: 'Size', num: true, title: 'Bytes of the part', cell: (p) => bytes(p.bytes), sort: (p) => p.bytes }]} /></details>`
        : html`<${NotHeld} from=${from} what="segment" />`}
    <//><${History} of=${id} />`;
}

// A checkpoint is read itself where the daemon can, or else is looked for in the listing.
function Checkpoint({ id }) {
  const from = useData(`checkpoints/${encodeURIComponent(id)}`, {}, { every: 30 });
  const absent = from.trouble?.kind === 'absent';
  // The cursor is the key before it.
  const listed = useData(absent && /^[0-9a-f]{64}$/.test(id) ? 'checkpoints' : null, { cursor: before(id), limit: 2 }, { every: 0 });
  const c = from.data ?? listed.data?.items.find((x) => x.hash === id);
  const gone = absent && listed.data && !c ? { trouble: { kind: 'missing', message: '' } } : absent ? listed : from;
  return html`<${Panel} id="checkpoint" title=${`Checkpoint ${shortKey(id)}`} aside=${html`<a href="#/checkpoints">all checkpoints</a>`}>
      <p><code class="wrap">${shown(id, 80)}</code></p>
      ${c ? html`<${Facts} o=${c} /><dl class="facts">
        <dt title="exact: as a full prefill. spliced: came from a splice">Kind</dt><dd>${shown(c.kind, 20)}${c.thinned ? ', thinned: its states have left memory' : ''}</dd>
        <dt title="The checkpoint that it continues from">Extends</dt><dd>${c.parent ? html`<${Key} of=${c.parent} object="checkpoint" />` : 'nothing: the beginning of a prompt'}</dd>
        <dt title="Checkpoints that continue from it">Extended by</dt><dd>${plural(c.children, 'checkpoint')}</dd>
        <dt title="Tokens whose keys and values it holds itself">Own rows</dt><dd>${tokens(c.rows)}</dd></dl>`
        : html`<${NotHeld} from=${gone} what="checkpoint" />`}
    <//><${History} of=${id} />`;
}

// before is the key just before another one.
function before(key) {
  if (!/^[0-9a-f]{64}$/.test(key) || /^0+$/.test(key)) return undefined;
  return (BigInt(`0x${key}`) - 1n).toString(16).padStart(64, '0');
}

const NotHeld = ({ from, what }) => (from.trouble?.kind === 'missing'
  ? html`<p class="absent">This ${what} is not held. Below is what was decided about it, as far as that is remembered.</p>`
  : html`<${Missing} from=${from} what=${`this ${what}`} />`);

const Facts = ({ o }) => html`<${Stats}>
    <${Stat} label="Size" value=${bytes(o.bytes)} note=${o.disk_bytes > 0 ? `${bytes(o.disk_bytes)} on disk` : 'not on disk'} title="Bytes of its state, over all ranks" />
    ${o.packed && html`<${Stat} label="As written" value=${o.packed.plain_bytes > 0 ? bytes(o.packed.plain_bytes) : 'not known'} note=${`off by ${percent(Math.max(o.packed.transition_error, o.packed.state_error))}`} title="What it would take unpacked, and how far its transitions and end-states are from those that were published, at most" />`}
    <${Stat} label="Length" value=${tokens(o.tokens)} title="Tokens that it stands for" />
    <${Stat} label="Lies in" value=${(o.tiers ?? []).map((t) => tierName(t)).join(', ') || 'nowhere yet'} note=${levels[o.level] ?? ''} title="Tiers that have it, the fastest first" />
    ${o.hits !== undefined && html`<${Stat} label="Used" value=${plural(o.hits, 'time')} title="Hits since it was published" />`}
    <${Stat} label="Leases now" value=${plural(o.leases, 'lease')} href="#/connections?show=leases" title="Clients that read it; it cannot leave while they do" />
    <${Stat} label="Last used" value=${html`<${Ago} at=${o.last_used} />`} note=${html`published <${Ago} at=${o.created} />`} title="When a request used it last" />
  <//>
  <dl class="facts"><dt>Tenant</dt><dd><${Name} text=${o.tenant} most=${400} /></dd><dt>Model</dt><dd><${Name} text=${o.model} most=${400} /></dd></dl>`;

// What was decided about one key, and what happened to it: why it left.
function History({ of }) {
  const prefix = hexOnly(of);
  const list = useData(prefix ? 'decisions' : null, { key_prefix: prefix, limit: 50 }, { every: 30, kinds: ['evicted', 'demoted'] });
  useEvents();
  const happened = events.list.filter((e) => e.key === of);
  return html`<${Panel} id="history" title="What was decided about it, and why">
    ${list.data && html`<${DecisionTable} rows=${list.data.items} empty="Nothing is remembered of it: much was decided since, or the daemon has started since and keeps nothing on disk, or it was never here." />`}
    <${Missing} from=${list} what="decisions" />
    ${happened.length > 0 && html`<h3>Events seen by this page</h3><ul class="ticker">${happened.map((e) => html`<li key=${e.id}><${Time} at=${e.at} /> <${EventText} e=${e} /></li>`)}</ul>`}
  <//>`;
}

const DecisionTable = ({ rows, empty }) => html`<${Table} caption="Decisions" rows=${rows} empty=${empty} columns=${[
  { id: 'at', label: 'At', title: 'When', cell: (d) => html`<${Time} at=${d.at} />`, sort: (d) => d.at },
  { id: 'what', label: 'Decided', title: 'What was done with it', cell: (d) => html`<strong title=${decided[d.what]}>${shown(d.what, 20)}</strong>`, sort: (d) => d.what },
  { id: 'why', label: 'Why', cell: (d) => html`<span class="prose">${shown(d.why, 300)}</span>`, sort: (d) => d.why },
  { id: 'key', label: 'Of', title: 'The object', cell: (d) => html`${shown(d.object, 20)} <${Key} of=${d.key} object=${d.object} />`, sort: (d) => d.key },
  { id: 'tenant', label: 'Tenant', cell: (d) => html`<${Name} text=${d.tenant} most=${24} />`, sort: (d) => d.tenant },
  { id: 'tokens', label: 'Tokens', num: true, title: 'Of the prompt, what a hit saves', cell: (d) => html`<span title=${`tokens ${count(d.begin)} to ${count(d.end)}`}>${tokens(d.end - d.begin)}</span>`, sort: (d) => d.end - d.begin },
  { id: 'bytes', label: 'Size', num: true, title: 'Bytes', cell: (d) => bytes(d.bytes), sort: (d) => d.bytes },
  { id: 'value', label: 'Worth', num: true, title: 'Milliseconds that a hit saves for each MiB, as far as known: what the policy ranks by', cell: (d) => (d.value_ms_per_mib > 0 ? `${millis(d.value_ms_per_mib)} a MiB` : html`<span class="muted" title="Not known: the disk goes by last use">–</span>`), sort: (d) => d.value_ms_per_mib },
]} />`;

export function Decisions({ route: { params } }) {
  const prefix = hexOnly(params.key);
  const list = useData('decisions', { key_prefix: prefix, what: params.what, tenant: params.tenant, profile: params.profile, limit: params.limit || 100 }, { every: 15, kinds: ['evicted', 'demoted'] });
  const profiles = useData('profiles', {}, { every: 60 });
  const stats = useData('stats', {}, { every: 30 });
  const config = useData('config', {}, { every: 0 });
  return html`
    <${Panel} id="decisions" title="What was decided, and why" about="Why something was stored or not, and why it left: the newest first. Paste a key, or its first digits, to ask about one object." aside=${html`<${Refreshed} from=${list} />`}>
      <${Filters} page="decisions" params=${params} fields=${[
        { name: 'key', label: 'Key begins with', title: 'The first hex digits of a key', hint: '3f9a…', most: 80 },
        { name: 'what', label: 'Decided', title: 'What was done', options: Object.keys(decided) },
        { name: 'tenant', label: 'Tenant', title: 'The exact name of a tenant' },
        { name: 'profile', label: 'Model', title: 'A model and its layout', options: profileOptions(profiles.data) },
        { name: 'limit', label: 'Show', title: 'How many at most', none: '100', options: [300, 1000] }]} />
      ${list.data && html`<${DecisionTable} rows=${list.data.items} empty=${Object.values(params).some(Boolean) ? 'No decision that is remembered passes the search. The daemon keeps a bounded number; those since its start are counted below.' : 'No decision is remembered.'} />`}
      <${Missing} from=${list} what="decisions" />
    <//>
    <${Panel} id="policies" title="How often, since the start" about="All decisions by what was done and why, also those that are not remembered singly.">
      <${Counted} stats=${stats} />
    <//>
    <${Panel} id="config" title="Settings in force" about="As the daemon tells them; secrets are left out.">
      ${config.data && html`<${Settings} config=${config.data} />`}
      <${Missing} from=${config} what="its settings here" />
    <//>`;
}

function Counted({ stats }) {
  if (!stats.data) return html`<${Missing} from=${stats} what="counters" />`;
  const rows = Object.entries(byName(stats.data)).filter(([k]) => k.startsWith('decisions_')).map(([k, n]) => {
    const [what, ...why] = k.slice('decisions_'.length).split('_');
    return { what, why: why.join(' '), n };
  });
  return html`<${Table} caption="Decisions counted" rows=${rows} rowKey=${(r) => r.what + r.why} sortBy="n" descending empty="None yet." columns=${[
    { id: 'what', label: 'Decided', cell: (r) => html`<strong title=${decided[r.what]}>${shown(r.what, 20)}</strong>`, sort: (r) => r.what },
    { id: 'why', label: 'Why', cell: (r) => shown(r.why, 200), sort: (r) => r.why },
    { id: 'n', label: 'Times', num: true, title: 'Since the daemon started', cell: (r) => plural(r.n, 'time'), sort: (r) => r.n }]} />`;
}

// flat makes lines of nested settings.
function flat(value, path = '') {
  if (Array.isArray(value) && value.every((v) => v === null || typeof v !== 'object')) return [[path, value.join(', ')]];
  if (value !== null && typeof value === 'object') return Object.entries(value).flatMap(([k, v]) => flat(v, path ? `${path}.${k}` : k));
  return [[path, value]];
}

function Settings({ config }) {
  const say = (k, v) => (/bytes$/.test(k) && typeof v === 'number' ? `${bytes(v)} (${count(v)} bytes)` : shown(v === '' || v === null ? '(not set)' : v, 400));
  return html`<${Table} caption="Settings" rows=${flat(config)} rowKey=${(r) => r[0]} columns=${[
    { id: 'name', label: 'Setting', cell: (r) => html`<code>${shown(r[0], 120)}</code>`, sort: (r) => r[0] },
    { id: 'value', label: 'Value', cell: (r) => html`<span class="prose wrap">${say(r[0], r[1])}</span>` }]} />`;
}

export function Events({ route: { params } }) {
  useEvents();
  const rows = events.list.filter((e) => (!params.kind || e.kind === params.kind) && (!params.tenant || e.tenant === params.tenant) && (!params.key || (e.key ?? '').startsWith(hexOnly(params.key))));
  return html`<${Panel} id="events" title="What happened" about="What happens, as it happens, the newest first. This page keeps the last 500 that it has seen.">
    ${events.mode === 'absent' ? html`<${Absent} what="events" />` : html`
      <${Filters} page="events" params=${params} fields=${[
        { name: 'kind', label: 'Kind', title: 'What happened', options: eventKinds },
        { name: 'tenant', label: 'Tenant', title: 'The exact name of a tenant' },
        { name: 'key', label: 'Key begins with', title: 'The first hex digits of a key', most: 80 }]} />
      ${events.lost > 0 && html`<p class="trouble">${plural(events.lost, 'event')} came faster than this page read, and ${events.lost === 1 ? 'is' : 'are'} not listed.</p>`}
      <${Table} caption="Events" rows=${rows} rowKey=${(e) => e.id} empty="Nothing has happened yet, or nothing that passes the search." columns=${[
        { id: 'at', label: 'At', cell: (e) => html`<${Time} at=${e.at} />`, sort: (e) => e.id },
        { id: 'what', label: 'What', cell: (e) => html`<${EventText} e=${e} />`, sort: (e) => e.kind },
        { id: 'tenant', label: 'Tenant', cell: (e) => (e.tenant ? html`<${Name} text=${e.tenant} most=${24} />` : '–'), sort: (e) => e.tenant },
        { id: 'client', label: 'Client', cell: (e) => (e.client ? html`<${Name} text=${e.client} most=${24} />` : '–'), sort: (e) => e.client },
        { id: 'why', label: 'Why', title: 'The reason, and the policy that ranked it', cell: (e) => html`<span class="prose">${shown([e.why, e.policy && `by ${e.policy}`].filter(Boolean).join(', ') || '–', 200)}</span>` },
        { id: 'bytes', label: 'Size', num: true, title: 'Bytes', cell: (e) => (e.bytes === undefined ? '–' : bytes(e.bytes)), sort: (e) => e.bytes },
        { id: 'value', label: 'Worth', num: true, title: 'Milliseconds that a hit saves for each MiB', cell: (e) => (e.value_ms_per_mib === undefined ? '–' : `${millis(e.value_ms_per_mib)} a MiB`), sort: (e) => e.value_ms_per_mib }]} />`}
  <//>`;
}
