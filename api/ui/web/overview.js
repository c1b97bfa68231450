// The first page: how well the cache does, what is in it, and where each question is answered.
import { html, useMemo, useRef, useState } from './vendor/preact.js';
import { daemon, useDaemon, useData } from './daemon.js';
import { events } from './events.js';
import { Chart } from './chart.js';
import { bytes, count, many, millis, percent, plural, ratio, shown, time, tokens } from './format.js';
import { Absent, Bar, EventText, Missing, Name, Panel, Pools, Refreshed, SourceLegend, Stat, Stats, Time, hitRatio, ratioTitle, sourceParts, useEvents, wholeHitRatio } from './parts.js';
import { byName, canaryAnswer, cut, diskAnswer, enginesAnswer, missedOf, series, sum, usageFields, usageOf } from './answers.js';
import { Table } from './table.js';
import { questions, reasonOf, sources, ways } from './words.js';

const ranges = [
  { id: '15m', name: 'last 15 min', seconds: 900 },
  { id: '1h', name: 'last hour', seconds: 3600 },
  { id: '6h', name: 'last 6 h', seconds: 6 * 3600 },
  { id: '7d', name: 'last 7 days', seconds: 7 * 86400 },
];

export function Overview() {
  const [chosen, choose] = useState(ranges[1]);
  const over = useData('overview', { history: chosen.id }, { every: 10, kinds: ['request', 'published', 'evicted'] });
  const stats = useData('stats', {}, { every: 30 });
  const canaries = useData('canaries', {}, { every: 30, kinds: ['canary'] });
  const profiles = useData('profiles', {}, { every: 30, kinds: ['attached'] });
  const older = over.trouble?.kind === 'absent';
  // What is there stays while another range is asked for.
  const last = useRef({ range: chosen });
  if (over.data) last.current = { data: over.data, range: chosen };
  const { data: told, range: asked } = last.current;
  const pools = useData(older ? 'pools' : null, {}, { every: 10 });
  const connections = useData(older ? 'connections' : null, {}, { every: 10 });
  const { status } = useDaemon();
  const counters = byName(stats.data);
  // Where the overview does not tell what sharing saves, the metrics do.
  const unshared = older || (told && told.shared_bytes_saved === undefined);
  const metrics = useData(unshared ? '../../metrics' : null, {}, { every: 30, text: true });
  const shared = told?.shared_bytes_saved ?? series(metrics.data, 'spliced_shared_saved_bytes');
  const data = older
    ? { pools: pools.data?.items ?? [], connections: connections.data?.items.length, leases: counters.leases, segments: most(pools.data, 'public'), checkpoints: most(pools.data, 'private'), shared_bytes_saved: shared }
    : told && { ...told, shared_bytes_saved: shared };
  const window = useMemo(() => cut(told?.history, asked.seconds), [told, asked]);
  // A history is of one start of the daemon, which sums outlive.
  const range = window && window.seconds < 0.9 * asked.seconds ? { ...asked, name: 'since the last start' } : asked;
  const recent = usageOf(window);
  const meant = recent ? range.name : 'since counting began';
  if (!data) return html`<${Missing} from=${over} what="the overview" />`;
  return html`
    <${Attention} status=${status} canaries=${canaries.data?.items} />
    <${Begin} data=${data} status=${status} />
    <${Panel} id="numbers" title="What the cache does" aside=${html`<${Range} range=${chosen} set=${choose} /> <${Refreshed} from=${over} />`}>
      <${Numbers} data=${data} window=${window} range=${range} older=${older} />
    <//>
    <div class="columns">
      <${Questions} data=${data} window=${window} range=${range} counters=${counters} canaries=${canaries.data?.items} profiles=${profiles.data?.items} status=${status} />
      <${Happened} />
    </div>
    <${Panel} id="why" title=${`Where prompt tokens came from, ${meant}`} aside=${html`<${Range} range=${chosen} set=${choose} />`} about="Time to first token is spent on what is computed. The more of a prompt is orange, the less this cache helped it.">
      ${older ? html`<${Absent} what="sums of tokens by source" />` : html`<${Why} usage=${recent ?? data.usage} />`}
    <//>
    <${Panel} id="time" title=${`Over time: ${range.name}`} aside=${html`<${Range} range=${chosen} set=${choose} />`}>
      ${older ? html`<${Absent} what="a history" />` : html`<${Charts} window=${window} />`}
    <//>
    <${Panel} id="tiers" title="What is in each tier" about="Dark: leased by clients now, cannot leave. Light: may be evicted for something better." aside=${html`<a href="#/segments">segments</a> <a href="#/checkpoints">checkpoints</a>`}>
      <${Pools} pools=${data.pools} />
    <//>`;
}

// What the fullest tier has of a pool: objects of others may be among them, or not.
const most = (pools, name) => (pools ? Math.max(0, ...pools.items.filter((p) => p.name === name).map((p) => p.objects)) : undefined);

// What is used of GPU memory, and of how much; null where none is given.
function hbmOf(pools) {
  const hbm = (pools ?? []).filter((p) => p.tier === 'hbm');
  const all = (field) => bytes(sum(hbm.map((p) => p[field])));
  return hbm.length ? { used: all('used_bytes'), whole: all('capacity_bytes') } : null;
}

const Range = ({ range, set }) => html`<span class="range" role="group" aria-label="Time shown">${ranges.map((r) => html`
  <button type="button" class="small" aria-pressed=${String(r.id === range.id)} onClick=${() => set(r)}>${r.name}</button>`)}</span>`;

// What wants to be looked at, first of all.
function Attention({ status, canaries }) {
  const bad = (status?.checks ?? []).filter((c) => c.state !== 'ok');
  const gpus = (status?.gpus ?? []).filter((g) => g.trouble);
  const off = (canaries ?? []).filter((c) => c.off);
  if (!bad.length && !gpus.length && !off.length) return null;
  return html`<section class="attention" aria-label="What needs a look"><h2>Works with less</h2><ul>
    ${bad.map((c) => html`<li><strong>${shown(c.name, 40)}</strong> ${shown(c.detail || 'degraded', 500)}</li>`)}
    ${gpus.map((g) => html`<li><a href="#/gpu">GPU ${shown(g.uuid, 16)}</a> is ${shown(g.state, 20)}: ${shown(g.trouble, 300)}</li>`)}
    ${off.map((c) => html`<li><a href="#/canary">Splicing is switched off</a> for <${Name} text=${c.model} />, tenant <${Name} text=${c.tenant} />${c.why ? html`: ${shown(c.why, 300)}` : ''}</li>`)}
  </ul></section>`;
}

// What to do with a daemon that nobody uses yet.
function Begin({ data, status }) {
  const served = data.usage ? data.usage.requests > 0 : (data.segments || data.checkpoints) > 0;
  if (served || data.segments > 0 || data.checkpoints > 0 || data.segments === undefined) return null;
  const socket = status?.socket ?? '/run/spliced/spliced.sock';
  return html`<section class="panel begin" id="begin" aria-labelledby="begin-title"><header><h2 id="begin-title">Nothing is cached yet</h2></header>
    ${data.connections
      ? html`<p>${plural(data.connections, 'client')} ${data.connections === 1 ? 'is' : 'are'} attached, and no prompt has been served. The first request fills the cache, and the second one with the same text hits.</p>`
      : html`<p>No engine is attached. To begin:</p><ol>
        <li>Point an engine at the socket <code>${shown(socket, 120)}</code> (see <em>docs/engines.md</em> for vLLM, SGLang and transformers).</li>
        <li>See whether clients reach it: <code>splicectl doctor -socket ${shown(socket, 120)}</code></li>
        <li>Or watch it work without an engine: <code>splicectl demo -socket ${shown(socket, 120)}</code></li></ol>`}
    <p class="muted">This page fills by itself.</p></section>`;
}

function Numbers({ data, window, range, older }) {
  const u = data.usage, w = window?.totals;
  const hbm = hbmOf(data.pools);
  const all = (text) => `since ${u.since && Date.parse(u.since) > 0 ? time(u.since) : 'counting began'}: ${text}`;
  const busy = w && w.prompt_tokens > 0;
  return html`<${Stats}>
    ${!older && html`
      <${Stat} id="hit-ratio" label=${`Token hit ratio, ${range.name}`} title=${ratioTitle} href="#/tenants" value=${busy ? percent(hitRatio(w)) : 'no prompts'} note=${all(percent(hitRatio(u)))} />
      <${Stat} label="Hit ratio with the engine's cache" title="Tokens that were not computed, also those that the engine had itself, of all prompt tokens" value=${busy ? percent(wholeHitRatio(w)) : 'no prompts'} note=${all(percent(wholeHitRatio(u)))} />
      <${Stat} label=${`Tokens not computed, ${range.name}`} title="Prompt tokens that came from saved prefixes and spliced segments" value=${w ? many(w.prefix_tokens + w.reused_tokens) : '–'} note=${all(tokens(u.prefix_tokens + u.reused_tokens))} />
      <${Stat} label=${`Time saved, ${range.name}`} estimate title="Estimate: what a full prefill would have taken, less what serving from the cache took" value=${w ? millis(w.saved_ms) : '–'} note=${all(millis(u.saved_ms)) + (u.saved_guess_ms ? `, of which ${millis(u.saved_guess_ms)} is a guess: no engine has measured its prefill` : '')} />
      ${u.ttft_requests !== undefined && html`<${Stat} id="ttft" label=${`Time to first token, ${range.name}`} title="Mean of what engines told, from a request's arrival to its first token" href="#/requests" value=${w?.ttft_requests > 0 ? millis(w.ttft_ms / w.ttft_requests) : 'not told'} note=${all(u.ttft_requests > 0 ? millis(u.ttft_ms / u.ttft_requests) : 'not told')} />`}
      <${Stat} label=${`Requests, ${range.name}`} href="#/requests" title="Prompts that engines asked about" value=${w ? many(w.requests) : '–'} note=${window?.seconds ? `${count(Number((w.requests / window.seconds).toPrecision(2)))} a second; ${all(many(u.requests))}` : all(many(u.requests))} />`}
    ${data.shared_bytes_saved !== undefined && html`<${Stat} id="shared" label="Bytes saved by sharing" title="What the pools would hold more if each use of a shared segment had a copy of its own" value=${bytes(data.shared_bytes_saved)} note="now, over all tiers" />`}
    <${Stat} label="Segments" href="#/segments" title="Pieces of prompts whose state is held, for any request of their tenant; the disk may hold more" value=${many(data.segments)} note="in memory now" />
    <${Stat} label="Checkpoints" href="#/checkpoints" title="Saved states that later prompts continue from; the disk may hold more" value=${many(data.checkpoints)} note="in memory now" />
    <${Stat} label="Attached clients" href="#/connections" title="Connections of engines to the socket" value=${many(data.connections)} note=${plural(data.leases, 'lease')} />
    <${Stat} label="GPU memory (HBM)" href="#/gpu" title="Copies in memory of GPUs, of what they may take" value=${hbm ? hbm.used : 'none'} note=${hbm ? `of ${hbm.whole}` : 'no GPU memory is given'} />
  <//>`;
}

function Why({ usage }) {
  if (!usage?.prompt_tokens) return html`<p class="muted">No prompt has been served yet.</p>`;
  const missed = missedOf(usage).map(([reason, n]) => ({ reason, n }));
  const seam = usage.seam_tokens ?? 0;
  const rows = seam > 0 && !usage.missed?.seam ? [...missed, { reason: 'seam', n: seam }] : missed;
  return html`
    <${Bar} parts=${sourceParts(usage)} total=${usage.prompt_tokens} label="Prompt tokens by source" tall />
    <${SourceLegend} row=${usage} />
    ${usage.ways && html`<p>Served by: ${Object.entries(usage.ways).map(([w, n], i) => html`${i ? ', ' : ''}<span title=${ways[w]}>${shown(w, 20)} ${plural(n, 'request')}</span>`)}.</p>`}
    <h3>Why the rest was computed</h3>
    ${rows.length ? html`<${Table} caption="Missed tokens by reason" rows=${rows} rowKey=${(r) => r.reason} sortBy="tokens" descending columns=${[
      { id: 'reason', label: 'Reason', cell: (r) => html`<strong>${reasonOf(r.reason).name}</strong>`, sort: (r) => r.reason },
      { id: 'tokens', label: 'Tokens', num: true, title: 'Prompt tokens that were not served for this reason', cell: (r) => tokens(r.n), sort: (r) => r.n },
      { id: 'share', label: 'Of computed', num: true, title: 'Of all tokens that were computed', cell: (r) => percent(ratio(r.n, usage.computed_tokens)), sort: (r) => r.n },
      { id: 'means', label: 'What it means, and what helps', cell: (r) => html`<span class="prose">${reasonOf(r.reason).about} ${reasonOf(r.reason).hint}</span>` },
    ]} />` : html`<p class="muted">No token was missed.</p>`}
    <p class="small">Single prompts: <a href="#/requests">requests</a>. By tenant and model: <a href="#/tenants">tenants</a>.</p>`;
}

function Charts({ window }) {
  const made = useMemo(() => {
    if (!window) return null;
    const s = window.series, rate = (name, per = 1) => (s[name] ?? window.at.map(() => null)).map((v) => (v === null ? null : (v * per) / window.step));
    return {
      tokens: sources.map((x) => ({ label: x.name, values: rate(x.field), colour: `--${x.id}`, swatch: `part ${x.id}` })),
      ratio: [
        { label: 'from the daemon', values: window.at.map((_, i) => share(s, i, hitRatio)), colour: '--segment' },
        { label: "with the engine's own", values: window.at.map((_, i) => share(s, i, wholeHitRatio)), colour: '--engine', dash: [5, 4] }],
      first: s.ttft_ms && [{ label: 'mean time to first token', values: window.at.map((_, i) => (s.ttft_requests[i] > 0 ? s.ttft_ms[i] / s.ttft_requests[i] : null)), colour: '--computed' }],
      requests: [{ label: 'requests', values: rate('requests'), colour: '--accent' }],
      saved: [{ label: 'saved each second', values: rate('saved_ms'), colour: '--prefix' }],
      evictions: [{ label: 'evictions', values: rate('evictions', 60), colour: '--computed' }],
      used: [['dram', 'memory', undefined], ['disk', 'disk', [6, 4]], ['hbm', 'GPU memory', [2, 3]]].filter(([t]) => s[`used_bytes_${t}`])
        .map(([t, label, dash]) => ({ label, values: s[`used_bytes_${t}`], colour: `--tier-${t}`, dash })),
    };
  }, [window]);
  if (!made) return html`<p class="muted">The daemon has kept no history yet: a first point comes after some seconds.</p>`;
  const at = window.at;
  const per = (unit) => (v) => (v === null || v === undefined ? '–' : `${many(Number(v.toPrecision(3)))}${unit}`);
  return html`<div class="charts">
    <${Chart} title="Prompt tokens by source" about="Tokens of prompts each second, by where they came from" at=${at} series=${made.tokens} stacked show=${per('/s')} />
    <${Chart} title="Token hit ratio" about=${ratioTitle} at=${at} series=${made.ratio} top=${1} show=${(v) => percent(v)} />
    ${made.first && html`<${Chart} title="Time to first token" about="Mean of what engines told, from arrival to first token" at=${at} series=${made.first} show=${(v) => millis(v)} />`}
    <${Chart} title="Requests" about="Prompts that engines asked about, each second" at=${at} series=${made.requests} show=${per('/s')} />
    <${Chart} title="Time saved (estimate)" about="Estimated time of prefill saved, for each second that went by" at=${at} series=${made.saved} show=${(v) => millis(v)} />
    <${Chart} title="Evictions" about="Objects that left a tier, each minute" at=${at} series=${made.evictions} show=${per('/min')} />
    <${Chart} title="Bytes used by tier" about="What the pools of each tier hold" at=${at} series=${made.used} binary show=${(v) => bytes(v)} />
  </div>`;
}

function share(series, i, of) {
  const r = of(Object.fromEntries(usageFields.map((f) => [f, series[f]?.[i] ?? 0])));
  return Number.isFinite(r) ? r : null;
}

// Each of the questions that people come with: a first answer, and where more is.
function Questions({ data, window, range, counters, canaries, profiles, status }) {
  const u = data.usage;
  const answers = {
    ttft: () => {
      if (!u?.prompt_tokens) return null;
      const recent = usageOf(window), row = recent ?? u;
      const [most] = missedOf(row);
      return `${recent ? range.name : 'since counting began'}, ${percent(ratio(row.computed_tokens, row.prompt_tokens))} of prompt tokens were computed${most ? `, most because: ${reasonOf(most[0]).name} (${tokens(most[1])})` : ''}`;
    },
    ratio: () => u?.prompt_tokens && `${percent(hitRatio(u))} over all`,
    evicted: () => `${window ? `${plural(window.totals.evictions, 'eviction')}, ${range.name}: ` : ''}search by its key`,
    shared: () => (data.shared_bytes_saved === undefined ? null : bytes(data.shared_bytes_saved)),
    canary: () => canaries && canaryAnswer(canaries),
    disk: () => diskAnswer(status, counters),
    leases: () => (data.leases === undefined ? null : plural(data.leases, 'lease')),
    hbm: () => {
      const hbm = hbmOf(data.pools);
      return hbm ? `${hbm.used} of ${hbm.whole}` : 'none is given to the cache';
    },
    engines: () => profiles && enginesAnswer(profiles),
    restart: () => status && (counters.disk_opened === undefined ? `started ${time(status.started)}, without a disk: nothing` : `started ${time(status.started)}: ${plural(counters.disk_opened, 'object')} from disk`),
  };
  return html`<${Panel} id="questions" title="Questions" about="Each leads to its answer.">
    <ul class="questions">${questions.map((q) => html`<li><a href=${q.to} title=${q.where}>${q.ask}</a> <span class="answer" data-question=${q.id}>${answers[q.id]() || '–'}</span></li>`)}</ul>
  <//>`;
}

// The newest events.
function Happened() {
  useEvents();
  const list = events.list.slice(0, 9);
  return html`<${Panel} id="happened" title="Just now" aside=${html`<a href="#/events">all events</a>`}>
    ${events.mode === 'absent' ? html`<${Absent} what="events" />`
      : list.length ? html`<ul class="ticker">${list.map((e) => html`<li key=${e.id}><${Time} at=${e.at} /> <${EventText} e=${e} /></li>`)}</ul>`
        : html`<p class="muted">Nothing has happened since this page was opened${daemon.phase === 'up' ? '.' : ', or the daemon does not answer.'}</p>`}
  <//>`;
}
