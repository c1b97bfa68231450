// Requests, and the story of one: which of its tokens came from where.
import { html, useMemo } from './vendor/preact.js';
import { useData } from './daemon.js';
import { bytes, count, many, millis, percent, plural, ratio, shown, tokens } from './format.js';
import { Bar, Filters, Key, Missing, Name, Panel, Refreshed, SourceLegend, Stat, Stats, Time, hitRatio, link, profileOptions, ratioTitle, sourceParts } from './parts.js';
import { Table } from './table.js';
import { reasonOf, savedBy, sources, tierLetters, tierName, tiers, ways } from './words.js';

export function Requests({ route }) {
  return route.rest[0] ? html`<${Request} id=${route.rest[0]} />` : html`<${List} params=${route.params} />`;
}

function List({ params }) {
  const query = { tenant: params.tenant, profile: params.profile, way: params.way, limit: params.limit || 100 };
  const list = useData('requests', query, { every: 15, kinds: ['request'], gap: 3 });
  const profiles = useData('profiles', {}, { every: 60 });
  const rows = list.data?.items;
  return html`<${Panel} id="requests" title="Recent requests" about="The newest first; a daemon keeps a bounded number. Sort by time to first token to find the slow ones, then open one to see why."
      aside=${html`<${Refreshed} from=${list} />`}>
    <${Filters} page="requests" params=${params} fields=${[
      { name: 'tenant', label: 'Tenant', title: 'The exact name of a tenant' },
      { name: 'profile', label: 'Model', title: 'A model and its layout', options: profileOptions(profiles.data) },
      { name: 'way', label: 'Way', title: 'How the prompt was served', options: Object.keys(ways) },
      { name: 'limit', label: 'Show', title: 'How many at most', none: '100', options: [300, 1000] }]} />
    <${SourceLegend} />
    ${rows ? html`<${Table} caption="Recent requests" rows=${rows} rowKey=${(r) => r.id} columns=${columns}
        empty=${Object.values(params).some(Boolean) ? 'No request passes the search.' : 'No prompt has been served since the daemon started.'} />` : ''}
    <${Missing} from=${list} what="a list of requests" />
  <//>`;
}

const columns = [
  { id: 'id', label: 'Request', title: 'Number in this daemon, and the name that the engine gave it', cell: (r) => html`<a href=${link('requests', String(r.id))}>#${r.id}</a> ${r.name ? html`<${Name} text=${r.name} most=${24} />` : ''}`, sort: (r) => r.id },
  { id: 'at', label: 'At', title: 'When it came', cell: (r) => html`<${Time} at=${r.at} />`, sort: (r) => r.at },
  { id: 'tenant', label: 'Tenant', title: 'Whose prompt it is', cell: (r) => html`<${Name} text=${r.tenant} most=${24} />`, sort: (r) => r.tenant },
  { id: 'model', label: 'Model', title: 'The model as its engine calls it', cell: (r) => html`<${Name} text=${r.model} most=${28} />`, sort: (r) => r.model },
  { id: 'way', label: 'Way', title: 'How it was served', cell: (r) => html`<span title=${ways[r.way]}>${shown(r.way, 20)}</span>${r.unverified && html` <span class="tag" title="Its client had not looked up what it says it reused; it is in no sums">unverified</span>`}`, sort: (r) => r.way },
  { id: 'tokens', label: 'Prompt', num: true, title: 'Tokens of the prompt', cell: (r) => tokens(r.prompt_tokens), sort: (r) => r.prompt_tokens },
  { id: 'from', label: 'Tokens from', title: 'Where its tokens came from', cell: (r) => html`<div class="cellbar"><${Bar} parts=${sourceParts(r)} total=${r.prompt_tokens} label=${`Request ${r.id}`} /></div>` },
  { id: 'hit', label: 'Hit', num: true, title: ratioTitle, cell: (r) => percent(hitRatio(r)), sort: hitRatio },
  { id: 'ttft', label: 'First token', num: true, title: 'Time to first token, as the engine reports it', cell: (r) => (r.ttft_ms > 0 ? millis(r.ttft_ms) : html`<span class="muted" title="The engine did not report it">not told</span>`), sort: (r) => r.ttft_ms || NaN },
  { id: 'saved', label: 'Saved (est.)', num: true, title: 'Estimate of the time that the cache saved; ~: a guess, no engine has measured its prefill', cell: (r) => `${r.saved_by === 'guess' ? '~' : ''}${millis(r.saved_ms)}`, sort: (r) => r.saved_ms },
  { id: 'wait', label: 'Waited', num: true, title: 'How long it waited for bytes to come from where they lay', cell: (r) => millis(r.wait_ms), sort: (r) => r.wait_ms },
  { id: 'missed', label: 'Prefix', title: 'Where its saved prefix lay, or why there was none', cell: (r) => (r.prefix_tokens > 0 ? tierName(r.prefix_tier) : !r.prefix_reason || r.prefix_reason === 'none' ? '–' : html`<span title=${reasonOf(r.prefix_reason).about}>${reasonOf(r.prefix_reason).name}</span>`), sort: (r) => r.prefix_reason },
];

function Request({ id }) {
  const from = useData(`requests/${encodeURIComponent(id)}`, {}, { every: 0 });
  const r = from.data;
  if (!r) {
    const gone = from.trouble?.kind === 'missing';
    return html`<${Panel} id="request" title=${`Request #${shown(id, 20)}`}>
      ${gone ? html`<p class="absent">This request is not kept any more: the daemon keeps a bounded number, and forgets them when it ends.</p>` : html`<${Missing} from=${from} what="this request" />`}
      <p><a href="#/requests">All requests</a></p><//>`;
  }
  return html`
    <${Panel} id="request" title=${`Request #${r.id}`} aside=${html`<a href="#/requests">all requests</a>`}>
      <dl class="facts">
        <dt>Came</dt><dd><${Time} at=${r.at} /></dd>
        <dt>Engine's name for it</dt><dd><${Name} text=${r.name} most=${400} /></dd>
        <dt>Tenant</dt><dd><${Name} text=${r.tenant} most=${400} /></dd>
        <dt>Model</dt><dd><${Name} text=${r.model} most=${400} /></dd>
        <dt>Client</dt><dd><${Name} text=${r.client} most=${400} /></dd>
        ${r.trace && html`<dt>Trace</dt><dd><code>${shown(r.trace, 40)}</code></dd>`}
      </dl>
      <${Stats}>
        <${Stat} label="Served by" value=${shown(r.way, 20)} note=${r.unverified ? 'unverified: its client had not looked up what it says it reused, so it is in no sums' : ways[r.way] ?? ''} title="The way that was chosen" />
        <${Stat} label="Token hit ratio" value=${percent(hitRatio(r))} note=${`${percent(ratio(r.computed_tokens, r.prompt_tokens))} computed`} title=${ratioTitle} />
        <${Stat} label="Time to first token" value=${r.ttft_ms > 0 ? millis(r.ttft_ms) : 'not told'} note="as the engine reports it" title="0 is shown as not told" />
        <${Stat} label="Time saved" estimate value=${millis(r.saved_ms)} title="Against computing the whole prompt" note=${r.saved_by ? savedBy(r.saved_by) : ''} />
        ${r.expected_loss !== undefined && html`<${Stat} label="Expected loss" value=${percent(r.expected_loss)} note="of the first token" title="Share of requests like this one with another first token than a full prefill, as the daemon expected" />`}
        <${Stat} label="Looked up in" value=${r.match_ms > 0 ? millis(r.match_ms) : 'not told'} title="How long the daemon took to say what it has" />
        <${Stat} label="Waited for bytes" value=${millis(r.wait_ms)} note=${r.bytes > 0 ? `${bytes(r.bytes)} placed` : ''} title="How long the request waited for bytes to come from disk, peers or to a GPU" />
      <//>
    <//>
    <${Story} r=${r} />
    <${Rest} r=${r} />
    <${Ways} r=${r} />`;
}

const sourceOf = (id) => sources.find((s) => s.id === id) ?? { id: 'other', letter: '?', name: shown(id, 20), about: '' };

// The prompt from its first token to its last, and below it where the bytes lay.
function Story({ r }) {
  const spans = r.spans ?? [];
  const whole = Math.max(1, r.prompt_tokens);
  const marks = useMemo(() => [0, 0.25, 0.5, 0.75, 1].map((f) => Math.round(f * r.prompt_tokens)), [r.prompt_tokens]);
  const say = (s) => `Tokens ${many(s.begin)} to ${many(s.end)}: ${sourceOf(s.from).name}${s.tier && s.tier !== 'none' ? `, from ${tierName(s.tier)}` : ''}${s.from === 'computed' && s.reason ? `, ${reasonOf(s.reason).name}` : ''}`;
  const has = (s) => s.tier && s.tier !== 'none' && s.from !== 'computed' && s.from !== 'engine';
  return html`<${Panel} id="story" title="Along the prompt" about="From the first token on the left to the last on the right. Above: where each token came from. Below: in which tier its state lay.">
    ${spans.length ? html`<div class="story" role="img" aria-label=${`The prompt of ${tokens(r.prompt_tokens)}: ${plural(spans.length, 'part')}, listed in the table below`}>
      <div class="track">${spans.map((s) => html`<span class=${`part ${sourceOf(s.from).id}`} style=${{ width: `${(100 * (s.end - s.begin)) / whole}%` }} title=${say(s)}>
        ${(s.end - s.begin) / whole > 0.025 ? html`<b>${sourceOf(s.from).letter}</b>` : ''}</span>`)}</div>
      <div class="track thin">${spans.map((s) => html`<span class=${has(s) && tiers[s.tier] ? `lay ${s.tier}` : 'lay'} style=${{ width: `${(100 * (s.end - s.begin)) / whole}%` }} title=${say(s)}>
        ${has(s) && (s.end - s.begin) / whole > 0.025 ? html`<b>${tierLetters[s.tier] ?? '?'}</b>` : ''}</span>`)}</div>
      <div class="marks">${marks.map((m) => html`<span>${count(m)}</span>`)}</div>
    </div>` : html`<p class="absent">The daemon does not tell the parts of this request.</p>`}
    <${SourceLegend} row=${r} />
    <p class="small muted">Tiers: ${Object.keys(tierLetters).map((t, i) => html`${i ? ', ' : ''}<b>${tierLetters[t]}</b> ${tiers[t]}`)}.
      ${r.seam_tokens > 0 && ` ${tokens(r.seam_tokens)} of those computed are seams: the tokens around each join, computed again on purpose.`}</p>
    ${spans.length > 0 && html`<${Table} caption="Parts of the prompt" rows=${spans} rowKey=${(s) => s.begin} columns=${[
      { id: 'begin', label: 'Tokens', title: 'The first one, and the one after the last', cell: (s) => `${count(s.begin)} to ${count(s.end)}`, sort: (s) => s.begin },
      { id: 'n', label: 'Length', num: true, title: 'Tokens of this part', cell: (s) => tokens(s.end - s.begin), sort: (s) => s.end - s.begin },
      { id: 'from', label: 'From', title: 'Where they came from', cell: (s) => html`<span class=${`swatch part ${sourceOf(s.from).id}`}><b>${sourceOf(s.from).letter}</b></span> ${sourceOf(s.from).name}`, sort: (s) => s.from },
      { id: 'tier', label: 'State lay in', title: 'The tier that it was read from', cell: (s) => (has(s) ? tierName(s.tier) : '–'), sort: (s) => s.tier },
      { id: 'why', label: 'Why computed', title: 'Why they did not come from the cache', cell: (s) => (s.from === 'computed' ? html`<span title=${reasonOf(s.reason).about}>${reasonOf(s.reason).name}</span>` : '–'), sort: (s) => s.reason },
      { id: 'key', label: 'Segment', title: 'Its key', cell: (s) => (s.key ? html`<${Key} of=${s.key} object="segment" />` : '–') },
    ]} />`}
  <//>`;
}

function Rest({ r }) {
  const by = new Map();
  for (const s of r.spans ?? []) if (s.from === 'computed') by.set(s.reason || '', (by.get(s.reason || '') ?? 0) + s.end - s.begin);
  if (!by.size) return null;
  const rows = [...by].map(([reason, n]) => ({ reason, n }));
  return html`<${Panel} id="rest" title="Why the rest was missed">
    <${Table} caption="Computed tokens of this request by reason" rows=${rows} rowKey=${(x) => x.reason} sortBy="n" descending columns=${[
      { id: 'reason', label: 'Reason', cell: (x) => html`<strong>${reasonOf(x.reason).name}</strong>`, sort: (x) => x.reason },
      { id: 'n', label: 'Tokens', num: true, title: 'Computed for this reason', cell: (x) => tokens(x.n), sort: (x) => x.n },
      { id: 'share', label: 'Of the prompt', num: true, title: 'Share of all its tokens', cell: (x) => percent(ratio(x.n, r.prompt_tokens)), sort: (x) => x.n },
      { id: 'means', label: 'What it means, and what helps', cell: (x) => html`<span class="prose">${reasonOf(x.reason).about} ${reasonOf(x.reason).hint}</span>` }]} />
    ${r.prefix_tokens === 0 && r.prefix_reason && r.prefix_reason !== 'none' && html`<p>There was no saved prefix: <strong>${reasonOf(r.prefix_reason).name}</strong>. ${reasonOf(r.prefix_reason).about}</p>`}
  <//>`;
}

function Ways({ r }) {
  const list = r.ways ?? [];
  const most = Math.max(...list.map((w) => w.ms), 1e-9);
  return html`<${Panel} id="ways" title="What the other ways would have cost" about="Estimates until the first token, by the measured speeds of engine and tiers, from when the request was decided.">
    ${list.length ? html`<${Table} caption="Ways to serve this request" rows=${list} rowKey=${(w) => w.way} sortBy="ms" columns=${[
      { id: 'way', label: 'Way', cell: (w) => html`<strong>${shown(w.way, 20)}</strong> <span class="muted">${ways[w.way] ?? ''}</span>${w.way === r.way ? html` <span class="tag good">taken</span>` : ''}`, sort: (w) => w.way },
      { id: 'ms', label: 'Estimated', num: true, title: 'Estimate of the time until the first token', cell: (w) => millis(w.ms), sort: (w) => w.ms },
      { id: 'bar', label: 'Beside the others', cell: (w) => html`<div class="cellbar"><${Bar} parts=${[{ kind: w.way === r.way ? 'segment' : 'engine', name: 'estimate', value: w.ms, text: millis(w.ms) }]} total=${most} label=${shown(w.way, 20)} /></div>` },
    ]} />` : html`<p class="muted">No other way was weighed for this request.</p>`}
  <//>`;
}
