// What the node is made of and who uses it: tenants, canary, connections, disk, GPUs, peers.
import { html, useRef } from './vendor/preact.js';
import { useDaemon, useData } from './daemon.js';
import { bytes, count, many, millis, percent, perSecond, plural, ratio, shown, time, tokens } from './format.js';
import { Ago, Bar, Filters, Key, Meter, Missing, Name, Panel, Pools, Refreshed, SourceLegend, Stat, Stats, Time, hitRatio, link, ratioTitle, sourceParts, useClock, wholeHitRatio } from './parts.js';
import { byName, canaryAnswer, diskAnswer, diskCheck, missedOf, quantile, series } from './answers.js';
import { Table } from './table.js';
import { reasonOf, tierName } from './words.js';

export function Tenants() {
  const usage = useData('usage', {}, { every: 15, kinds: ['request'] });
  const pools = useData('pools', {}, { every: 15 });
  const rows = usage.data?.items;
  const shares = (pools.data?.items ?? []).flatMap((p) => (p.tenants ?? []).map((t) => ({ ...t, pool: p.name, tier: p.tier, device: p.device, capacity: p.capacity_bytes })));
  return html`
    <${Panel} id="usage" title="Hit ratio by tenant and model" about="Totals since counting began, in tokens. The hit ratio is what the daemon served, of what the engine did not have itself." aside=${html`<${Refreshed} from=${usage} />`}>
      ${rows && html`<${SourceLegend} /><${Table} caption="Usage by tenant and model" rows=${rows} rowKey=${(r) => `${r.tenant} ${r.profile}`} sortBy="prompt" descending empty="No prompt has been served yet." columns=${usageColumns} />`}
      <${Missing} from=${usage} what="usage by tenant" />
    <//>
    <${Panel} id="quotas" title="What each tenant holds" about="Bytes as quotas count them: pages, extents on disk and records. What lies in two tiers counts in both.">
      ${pools.data && html`<${Table} caption="Bytes by tenant, of its quota" rows=${totals(shares)} rowKey=${(r) => r.tenant} sortBy="used" descending empty="No tenant holds anything yet." columns=${[
        { id: 'tenant', label: 'Tenant', cell: (r) => html`<${Name} text=${r.tenant} most=${40} />`, sort: (r) => r.tenant },
        { id: 'used', label: 'Holds in all', num: true, title: 'Over all tiers together, as its quota counts', cell: (r) => bytes(r.used_bytes), sort: (r) => r.used_bytes },
        { id: 'quota', label: 'Quota', num: true, title: 'What may be held for it, over all tiers together', cell: (r) => (r.quota_bytes > 0 ? bytes(r.quota_bytes) : 'no quota'), sort: (r) => r.quota_bytes },
        { id: 'share', label: 'Of its quota', cell: (r) => (r.quota_bytes > 0 ? html`<div class="cellbar"><${Meter} value=${r.used_bytes} whole=${r.quota_bytes} label=${`${shown(r.tenant, 40)} holds of its quota`} warn=${r.used_bytes > 0.95 * r.quota_bytes} /></div>` : '–') },
      ]} /><h3>By tier</h3><${Table} caption="Bytes by tenant and pool" rows=${shares} rowKey=${(r) => [r.tenant, r.pool, r.tier, r.device].join(' ')} sortBy="used" descending empty="No tenant holds anything yet." columns=${[
        { id: 'tenant', label: 'Tenant', cell: (r) => html`<${Name} text=${r.tenant} most=${40} />`, sort: (r) => r.tenant },
        { id: 'tier', label: 'Tier', cell: (r) => tierName(r.tier), sort: (r) => r.tier },
        { id: 'pool', label: 'Pool', title: 'public: segments; private: checkpoints', cell: (r) => (r.pool === 'private' ? 'checkpoints' : r.pool === 'public' ? 'segments' : shown(r.pool, 20)), sort: (r) => r.pool },
        { id: 'used', label: 'Holds', num: true, title: 'Bytes held for this tenant', cell: (r) => bytes(r.used_bytes), sort: (r) => r.used_bytes },
        { id: 'share', label: 'Of the pool', title: 'Of the whole pool', cell: (r) => html`<div class="cellbar"><${Meter} value=${r.used_bytes} whole=${r.capacity} label=${`${shown(r.tenant, 40)} holds of this pool`} /></div>` },
      ]} />`}
      <${Missing} from=${pools} what="pools" />
    <//>`;
}

// What each tenant holds over all pools. A tenant has one quota for all of them.
function totals(shares) {
  const by = new Map();
  for (const s of shares) {
    const sum = by.get(s.tenant) ?? { tenant: s.tenant, used_bytes: 0, quota_bytes: 0 };
    sum.used_bytes += s.used_bytes;
    sum.quota_bytes = Math.max(sum.quota_bytes, s.quota_bytes);
    by.set(s.tenant, sum);
  }
  return [...by.values()];
}

const usageColumns = [
  { id: 'tenant', label: 'Tenant', cell: (r) => html`<${Name} text=${r.tenant} most=${40} />`, sort: (r) => r.tenant },
  { id: 'model', label: 'Model', title: 'The model, and the first digits of its fingerprint', cell: (r) => html`<${Name} text=${r.model} most=${40} /> <code class="muted" title="Fingerprint of the model and its layout">${shown(r.profile, 12)}</code>`, sort: (r) => r.model },
  { id: 'hit', label: 'Token hit ratio', num: true, title: ratioTitle, cell: (r) => html`<strong>${percent(hitRatio(r))}</strong>`, sort: hitRatio },
  { id: 'whole', label: 'With engine cache', num: true, title: 'Tokens that were not computed, also those that the engine had itself, of all prompt tokens', cell: (r) => percent(wholeHitRatio(r)), sort: wholeHitRatio },
  { id: 'from', label: 'Tokens from', cell: (r) => html`<div class="cellbar"><${Bar} parts=${sourceParts(r)} total=${r.prompt_tokens} label="Tokens" /></div>` },
  { id: 'missed', label: 'Most missed', title: 'Computed tokens by reason, the largest', cell: (r) => {
    const list = missedOf(r);
    return list.length ? html`<span title=${list.map(([k, n]) => `${reasonOf(k).name}: ${tokens(n)}`).join('; ')}>${reasonOf(list[0][0]).name}, ${tokens(list[0][1])}</span>` : '–';
  }, sort: (r) => missedOf(r)[0]?.[1] },
  { id: 'prompt', label: 'Prompts', num: true, title: 'Tokens of all prompts', cell: (r) => tokens(r.prompt_tokens), sort: (r) => r.prompt_tokens },
  { id: 'requests', label: 'Requests', num: true, title: 'Prompts served', cell: (r) => plural(r.requests, 'request'), sort: (r) => r.requests },
  { id: 'saved', label: 'Time saved (est.)', num: true, title: 'Estimate; ~: some of it is a guess, since no engine has measured its prefill', cell: (r) => `${r.saved_guess_ms ? '~' : ''}${millis(r.saved_ms)}`, sort: (r) => r.saved_ms },
];

export function Canary() {
  const list = useData('canaries', {}, { every: 10, kinds: ['canary'] });
  const rows = list.data?.items;
  return html`<${Panel} id="canary" title="What engines compared" about="Engines compute a small share of what they reuse a second time, and compare. Too many differences beyond the bound switch splicing off for a model and tenant." aside=${html`<${Refreshed} from=${list} every=${10} />`}>
    ${rows && html`<p class="answer">Is it fine? <strong>${canaryAnswer(rows)}</strong></p>
    <${Table} caption="Canary by model and tenant" rows=${rows} rowKey=${(c) => `${c.profile} ${c.tenant}`} empty="No engine has reported a comparison. An engine compares when its canary share (canary_share) is above 0, and something was spliced." columns=${[
      { id: 'model', label: 'Model', cell: (c) => html`<${Name} text=${c.model} most=${40} /> <code class="muted" title=${shown(c.profile, 80)}>${shown(c.profile, 12)}</code>`, sort: (c) => c.model },
      { id: 'tenant', label: 'Tenant', cell: (c) => html`<${Name} text=${c.tenant} most=${40} />`, sort: (c) => c.tenant },
      { id: 'state', label: 'Splicing', title: 'off: all segments of this model and tenant are misses', cell: (c) => (c.off ? html`<strong class="tag bad">off</strong> <span title=${c.since}>since <${Time} at=${c.since} /></span>` : html`<span class="tag good">on</span>`), sort: (c) => Number(c.off) },
      { id: 'compared', label: 'Compared', num: true, title: 'Reuses that were computed again, since the daemon started', cell: (c) => plural(c.compared, 'reuse'), sort: (c) => c.compared },
      { id: 'failed', label: 'Beyond the bound', num: true, title: 'Of these, those that differed by more than the bound', cell: (c) => `${many(c.failed)} of ${many(c.compared)}`, sort: (c) => c.failed },
      { id: 'worst', label: 'Worst, of the bound', num: true, title: 'The largest difference (relative error of the compared logits) and the bound', cell: (c) => (c.compared ? html`${c.worst === undefined || c.worst === null ? 'no number' : count(Number(c.worst.toPrecision(3)))} of ${count(c.bound)} <${Meter} value=${c.worst ?? c.bound} whole=${c.bound} label="Worst difference of the bound" warn=${c.failed > 0} />` : '–'), sort: (c) => c.worst },
      { id: 'loss', label: 'Expected loss', title: 'Share of requests with another first token than a full prefill, by how segments are spliced, of what engines compared and what was measured offline', cell: (c) => (c.losses?.length ? c.losses.map((l) => html`<div>${l.primed ? 'primer' : 'no primer'}${l.refreshed ? ', refreshed' : ''}: ${l.expected === undefined ? 'unknown' : percent(l.expected)} of ${plural(l.compared + l.offline_compared, 'request')}</div>`) : '–') },
      { id: 'reported', label: 'Last report', num: true, title: 'When an engine reported last', cell: (c) => (c.reported ? html`<${Ago} at=${c.reported} />` : 'none'), sort: (c) => Date.parse(c.reported) },
      { id: 'why', label: 'Why off', cell: (c) => html`<span class="prose wrap">${shown(c.why || '–', 500)}</span>` },
    ]} />`}
    <${Missing} from=${list} what="the canary" />
  <//>`;
}

export function Connections({ route: { params } }) {
  const list = useData('connections', {}, { every: 10, kinds: ['attached', 'detached'] });
  const profiles = useData('profiles', {}, { every: 15, kinds: ['attached', 'detached'] });
  const leases = useData('leases', { tenant: params.tenant, connection: params.connection, limit: 1000 }, { every: 5 });
  const models = Object.fromEntries((profiles.data?.items ?? []).map((p) => [p.id, p.model]));
  const engines = Object.fromEntries((list.data?.items ?? []).map((c) => [c.id, c.engines]));
  useClock(1);
  return html`
    <${Panel} id="engines" title="Engines and models" about="Which engine, of which version, serves which model with this daemon." aside=${html`<${Refreshed} from=${profiles} />`}>
      ${profiles.data && html`<${Table} caption="Models and engines" rows=${profiles.data.items} rowKey=${(p) => p.id} empty="No engine has registered a model since the daemon started." columns=${[
        { id: 'model', label: 'Model', cell: (p) => html`<${Name} text=${p.model} most=${60} />`, sort: (p) => p.model },
        { id: 'engines', label: 'Engine and version', title: 'Engines that are attached now', cell: (p) => (p.engines?.length ? p.engines.map((e, i) => html`${i ? ', ' : ''}<${Name} text=${e} most=${60} />`) : html`<span class="muted">none is attached</span>`), sort: (p) => (p.engines ?? []).join() },
        { id: 'id', label: 'Profile', title: 'Number in this daemon, and fingerprint of the model and its layout', cell: (p) => html`${p.id} <code class="muted" title=${shown(p.fingerprint, 80)}>${shown(p.fingerprint, 12)}</code>`, sort: (p) => p.id },
        { id: 'layers', label: 'Layers', title: 'Layers of recurrence and of attention', cell: (p) => `${count(p.linear_layers)} linear, ${count(p.attention_layers)} attention`, sort: (p) => p.layers },
        { id: 'tp', label: 'Ranks', num: true, title: 'Size of the tensor-parallel group', cell: (p) => plural(p.tp_size, 'rank'), sort: (p) => p.tp_size },
        { id: 'fixed', label: 'A segment takes', num: true, title: 'Fixed bytes of a segment and rank, and bytes of each token', cell: (p) => `${bytes(p.state_bytes)} + ${bytes(p.row_bytes)} a token`, sort: (p) => p.state_bytes },
        { id: 'segments', label: 'Holds', num: true, title: 'Published, of all tenants', cell: (p) => html`<a href=${link('segments', '', { profile: p.id })}>${plural(p.segments, 'segment')}</a>, <a href=${link('checkpoints', '', { profile: p.id })}>${plural(p.checkpoints, 'checkpoint')}</a>`, sort: (p) => p.segments },
      ]} />`}
      <${Missing} from=${profiles} what="models" />
    <//>
    <${Panel} id="connections" title="Attached clients" about="Clients at the engine socket." aside=${html`<${Refreshed} from=${list} every=${10} />`}>
      ${list.data && html`<${Table} caption="Connections" rows=${list.data.items} rowKey=${(c) => c.id} empty="Nobody is attached." columns=${[
        { id: 'id', label: 'Connection', cell: (c) => `#${c.id}`, sort: (c) => c.id },
        { id: 'client', label: 'Client', title: 'What it calls itself, and the engine that it says it serves', cell: (c) => html`<${Name} text=${c.client} most=${40} /> <span class="muted">${(c.engines ?? []).map((e) => shown(e, 60)).join(', ')}</span>`, sort: (c) => c.client },
        { id: 'who', label: 'Process', title: 'User and process id, as the kernel tells; the id of a process in another namespace is not known', cell: (c) => `user ${c.uid}, ${c.pid > 0 ? `pid ${c.pid}` : 'pid not known'}`, sort: (c) => c.pid },
        { id: 'models', label: 'Models', cell: (c) => ((c.profiles ?? []).map((p, i) => html`${i ? ', ' : ''}<${Name} text=${models[p] ?? `profile ${p}`} most=${30} />`)) },
        { id: 'tenants', label: 'Tenants', cell: (c) => ((c.tenants ?? []).slice(0, 4).map((t, i) => html`${i ? ', ' : ''}<${Name} text=${t} most=${24} />`)), sort: (c) => (c.tenants ?? []).join() },
        { id: 'leases', label: 'Leases', num: true, title: 'Objects that it reads now', cell: (c) => html`<a href=${link('connections', '', { show: 'leases', connection: c.id })}>${plural(c.leases, 'lease')}</a>`, sort: (c) => c.leases },
        { id: 'flight', label: 'In flight', num: true, title: 'Requests of its that are worked on', cell: (c) => plural(c.in_flight, 'request'), sort: (c) => c.in_flight },
        { id: 'requests', label: 'So far', num: true, title: 'Frames that it has sent', cell: (c) => plural(c.requests, 'call'), sort: (c) => c.requests },
        { id: 'memory', label: 'Memory of its own', num: true, title: 'Staging and slots; memory of a GPU', cell: (c) => `${bytes(c.staging_bytes + c.slot_bytes)}${c.device_bytes > 0 ? `, ${bytes(c.device_bytes)} of GPU ${shown(c.device, 16)}` : ''}`, sort: (c) => c.staging_bytes + c.slot_bytes + c.device_bytes },
        { id: 'since', label: 'Since', num: true, title: 'When it attached', cell: (c) => html`<${Ago} at=${c.since} />`, sort: (c) => Date.parse(c.since) },
      ]} />`}
      <${Missing} from=${list} what="connections" />
    <//>
    <${Panel} id="leases" title="Who holds leases" about="What is leased cannot leave its tier. A lease ends by release, by its time, or when its client is gone." aside=${html`<${Refreshed} from=${leases} every=${5} />`}>
      <${Filters} page="connections" params=${params} fields=${[
        { name: 'tenant', label: 'Tenant', title: 'The exact name of a tenant' }, { name: 'connection', label: 'Connection', title: 'Its number', most: 20 }]} />
      ${leases.data && html`<${Table} caption="Leases" rows=${leases.data.items} rowKey=${(l) => `${l.connection} ${l.lease} ${l.rank}`} sortBy="since" empty="Nobody holds a lease now." columns=${[
        { id: 'lease', label: 'Lease', cell: (l) => `#${l.lease}`, sort: (l) => l.lease },
        { id: 'client', label: 'Held by', title: 'Client and connection', cell: (l) => html`<${Name} text=${l.client} most=${40} /> <span class="muted">${[...(engines[l.connection] ?? []).map((e) => shown(e, 60)), `connection #${l.connection}`, `rank ${l.rank}`].join(', ')}</span>`, sort: (l) => l.client },
        { id: 'key', label: 'On', title: 'What is leased', cell: (l) => html`${shown(l.object, 20)} <${Key} of=${l.key} object=${l.object} />`, sort: (l) => l.key },
        { id: 'tenant', label: 'Tenant', cell: (l) => html`<${Name} text=${l.tenant} most=${30} />`, sort: (l) => l.tenant },
        { id: 'since', label: 'Held since', num: true, title: 'When it was given', cell: (l) => html`<${Ago} at=${l.since} />`, sort: (l) => Date.parse(l.since) },
        { id: 'expires', label: 'Ends', num: true, title: 'When it ends by itself', cell: (l) => html`<${Ago} at=${l.expires} />`, sort: (l) => Date.parse(l.expires) },
        { id: 'bytes', label: 'Size', num: true, title: 'Bytes that it keeps in place', cell: (l) => bytes(l.bytes), sort: (l) => l.bytes },
        { id: 'device', label: 'In', title: 'Memory of the host, or of a GPU', cell: (l) => (l.device ? html`<code>${shown(l.device, 16)}</code>` : 'memory'), sort: (l) => l.device },
      ]} />`}
      ${leases.data?.next && html`<p class="muted">These are the first 1,000: pick a tenant or a connection to see others.</p>`}
      <${Missing} from=${leases} what="a list of leases" />
      ${leases.trouble?.kind === 'absent' && html`<p class="muted">How many each connection holds is in the list above.</p>`}
    <//>`;
}

// what a counter grew by since the last time that this page saw it, and in how long
function useGrowth(counters, at) {
  const seen = useRef({});
  const s = seen.current;
  if (at && s.at !== at) {
    s.growth = s.at && counters.disk_read >= s.counters.disk_read ? { by: (k) => counters[k] - s.counters[k], seconds: (at - s.at) / 1000 } : null;
    s.at = at;
    s.counters = counters;
  }
  return s.growth;
}

// Of rows that are what is counted, how many, and what that means.
const countColumns = [
  { id: 'what', label: 'What', cell: (r) => r[0] },
  { id: 'n', label: 'Since the start', num: true, cell: (r) => r[1] },
  { id: 'about', label: 'What it means', cell: (r) => html`<span class="prose">${r[2]}</span>` },
];

export function Disk() {
  const { status } = useDaemon();
  const stats = useData('stats', {}, { every: 5 });
  const pools = useData('pools', {}, { every: 10 });
  const metrics = useData('../../metrics', {}, { every: 10, text: true });
  const c = byName(stats.data);
  const growth = useGrowth(c, stats.at);
  if (!stats.data) return html`<${Missing} from=${stats} what="counters" />`;
  const restart = html`<${Restart} status=${status} c=${c} />`;
  if (c.disk_read === undefined) {
    return html`<${Panel} id="disk" title="Disk"><p class="absent">This daemon has no disk tier: what is evicted from memory is lost, and so is everything when it ends. The setting <code>-disk DIR</code> gives it one.</p><//>${restart}`;
  }
  const check = diskCheck(status);
  const labels = (op) => `operation="${op}"`;
  const within = (op) => {
    const [half, most] = [0.5, 0.99].map((q) => quantile(metrics.data, 'spliced_disk_operation_duration_seconds', labels(op), q));
    return Number.isFinite(half) ? { half: `half within ${millis(half)}`, most: `99 % ${Number.isFinite(most) ? `within ${millis(most)}` : 'not within what is counted'}` } : null;
  };
  const reads = within('read'), writes = within('write');
  const stuck = ['read', 'write'].map((op) => [op, series(metrics.data, 'spliced_disk_stalled_seconds', labels(op))]).filter(([, s]) => s > 0);
  const recent = growth && growth.by('disk_read') > 0 ? growth : null;
  return html`
    <${Panel} id="disk" title="How fast it is" about="Is it slow? A read should take a few milliseconds, and the queue should be near empty most of the time." aside=${html`<${Refreshed} from=${stats} every=${5} />`}>
      <p class="answer">State: <strong class=${check && check.state !== 'ok' ? 'tag bad' : 'tag good'}>${check ? shown(check.state, 20) : 'not told'}</strong> ${check?.detail ? shown(check.detail, 400) : ''} <span class="muted">${diskAnswer(status, c)}</span></p>
      ${stuck.map(([op, s]) => html`<p class="trouble">A ${op} has not returned for ${millis(s * 1000)}: the disk does not answer.</p>`)}
      <${Stats}>
        <${Stat} id="read-time" label="A read takes, now" value=${recent ? millis(recent.by('disk_read_nanos') / 1e6 / recent.by('disk_read')) : 'no reads'} note=${`average since the start: ${c.disk_read > 0 ? millis(c.disk_read_nanos / 1e6 / c.disk_read) : 'no reads'}`} title=${`Mean time of one read of an object${growth ? ` in the last ${millis(growth.seconds * 1000)}` : ''}`} />
        <${Stat} label="Speed of a read" value=${c.disk_read_nanos > 0 ? perSecond(c.disk_read_bytes / (c.disk_read_nanos / 1e9)) : 'no reads'} note="bytes by the time that reads took" title="Mean since the start" />
        ${reads && html`<${Stat} label="Reads, since the start" value=${reads.half} note=${reads.most} title="By a histogram: the upper bounds of its buckets" />`}
        ${writes && html`<${Stat} label="Writes, since the start" value=${writes.half} note=${writes.most} title="By a histogram: the upper bounds of its buckets; a sync is a write" />`}
        <${Stat} label="Read" value=${bytes(c.disk_read_bytes)} note=${`${plural(c.disk_read, 'object')}${growth ? `, ${perSecond(growth.by('disk_read_bytes') / growth.seconds)} now` : ''}`} title="From disk into memory since the start" />
        <${Stat} label="Written" value=${bytes(c.disk_written_bytes)} note=${`${plural(c.disk_written, 'object')}${growth ? `, ${perSecond(growth.by('disk_written_bytes') / growth.seconds)} now` : ''}`} title="From memory to disk since the start" />
        <${Stat} label="Waits to be written" value=${bytes(c.disk_queue_bytes)} note=${plural(c.disk_queue_objects, 'object')} title="The queue of writes. Full for long: the disk is slower than what is published" />
        <${Stat} label="Errors" value=${many(c.disk_read_errors + c.disk_write_errors + c.disk_sync_errors)} note=${`${many(c.disk_read_errors)} reads, ${many(c.disk_write_errors)} writes, ${many(c.disk_sync_errors)} syncs`} title="What the disk failed since the start" />
        <${Stat} label="Wrong bytes" value=${many(c.disk_corrupt)} note="never served, each was a miss" title="Entries whose bytes were not those that were published" />
      <//>
      <${Table} caption="More of the disk" rows=${details(c)} rowKey=${(r) => r[0]} columns=${countColumns} />
    <//>
    <${Panel} id="disk-pools" title="What is on it"><${Pools} pools=${(pools.data?.items ?? []).filter((p) => p.tier === 'disk')} /><${Missing} from=${pools} what="pools" /><//>
    ${restart}`;
}

function details(c) {
  return [
    ['Reads into memory that a request asked for', plural(c.promotions_done, 'object'), 'Done promotions: an engine waited for these.'],
    ['Reads that found no room in memory', plural(c.promotions_no_room, 'object'), 'Everything in memory was leased.'],
    ['Reads that failed', plural(c.promotions_unavailable, 'object'), 'The disk did not read; each was a miss.'],
    ['Read ahead and used', `${many(c.read_ahead_used)} of ${plural(c.read_ahead_begun, 'object')}`, 'Begun when a match named them; the more are used, the less a request waits.'],
    ['Writes put off', plural(c.writes_refused_busy, 'object'), 'The queue was full; they are tried again. Growing steadily: the disk is too slow for what is published.'],
    ['Evicted for room', plural(c.disk_evicted_room, 'object'), 'Steady: what is in use is larger than the budget of the disk.'],
    ['Evicted for a quota', plural(c.disk_evicted_quota, 'object'), 'Their tenant held more than it may.'],
    ['Publications that reached memory only', plural(c.acknowledged_memory, 'publication'), 'Of those that asked for more: the disk did not keep up.'],
  ].filter((r) => !r[1].startsWith('–'));
}

// What the last restart brought back.
function Restart({ status, c }) {
  if (!status) return null;
  return html`<${Panel} id="restart" title="Last start" about="What the daemon found again when it started.">
    <dl class="facts">
      <dt>Started</dt><dd><${Time} at=${status.started} /> (<${Ago} at=${status.started} />), version ${shown(status.version, 40)}</dd>
      ${c.disk_opened === undefined ? html`<dt>Brought back</dt><dd>nothing: it has no disk</dd>` : html`
        <dt title="Entries of the directory that are served again">Brought back from disk</dt><dd><strong>${plural(c.disk_opened, 'object')}</strong></dd>
        <dt title="Entries that could not be kept: torn, of another owner, or beyond the budget">Could not be kept</dt><dd>${plural(c.disk_dropped, 'object')}</dd>
        <dt>On disk now</dt><dd>${plural(c.disk_entries, 'object')}, ${bytes(c.disk_bytes)}</dd>`}
      <dt title="Splicing that was switched off stays off over a restart">Switched off</dt><dd>${plural(c.profiles_switched_off, 'profile')}</dd>
    </dl><//>`;
}

export function GPU() {
  const { status } = useDaemon();
  const pools = useData('pools', {}, { every: 10 });
  const stats = useData('stats', {}, { every: 10 });
  const c = byName(stats.data);
  const gpus = status?.gpus ?? [];
  const hbm = (pools.data?.items ?? []).filter((p) => p.tier === 'hbm');
  if (!status) return html`<p class="muted">Waiting for the daemon.</p>`;
  if (!gpus.length && !hbm.length) {
    return html`<${Panel} id="gpu" title="GPU"><p class="absent">No memory of a GPU is given to the cache: engines copy from memory. The settings <code>-hbm-public</code> and <code>-hbm-private</code> give it some.</p><p class="muted">Device of the daemon: ${shown(status.device, 200)}.</p><//>`;
  }
  return html`
    <${Panel} id="gpu" title="Copies on each GPU" about="Copies of segments and checkpoints in memory of GPUs. Losing one costs the next reader a copy over the bus." aside=${html`<${Refreshed} from=${pools} every=${10} />`}>
      <${Table} caption="GPUs" rows=${gpus} rowKey=${(g) => g.uuid} columns=${[
        { id: 'uuid', label: 'GPU', title: 'As nvidia-smi -L has it', cell: (g) => html`<code title=${shown(g.uuid, 80)}>${shown(g.uuid, 16)}</code> ${shown(g.name, 60)}`, sort: (g) => g.uuid },
        { id: 'state', label: 'State', cell: (g) => html`<span class=${`tag ${g.state === 'serving' ? 'good' : 'bad'}`}>${shown(g.state, 20)}</span> ${g.trouble ? html`<span class="prose">${shown(g.trouble, 300)}</span>` : ''}`, sort: (g) => g.state },
        { id: 'used', label: 'HBM used', num: true, title: 'Bytes of copies, of what the cache may take of this GPU', cell: (g) => html`${bytes(g.used_bytes)} of ${bytes(g.capacity_bytes)} <${Meter} value=${g.used_bytes} whole=${g.capacity_bytes} label="HBM used of the budget" />`, sort: (g) => g.used_bytes },
        { id: 'copies', label: 'Copies', num: true, title: 'Copies that lookups find', cell: (g) => plural(g.copies, 'copy', 'copies'), sort: (g) => g.copies },
        { id: 'coming', label: 'On their way', num: true, title: 'Copies wanted or being made', cell: (g) => plural(g.promoting, 'copy', 'copies'), sort: (g) => g.promoting },
        { id: 'own', label: "Clients' own", num: true, title: 'Memory of this GPU that clients have for themselves', cell: (g) => bytes(g.connection_bytes), sort: (g) => g.connection_bytes },
        { id: 'stuck', label: 'Hanging calls', num: true, title: 'Calls of the driver that run past their time now', cell: (g) => plural(g.stuck_calls, 'call'), sort: (g) => g.stuck_calls },
        { id: 'way', label: 'Shared by', title: 'How clients get its memory, compute mode, MPS, driver', cell: (g) => `${shown(g.way || 'not at all', 20)}; mode ${shown(g.mode || 'not known', 20)}; MPS ${shown(g.mps, 10)}; CUDA ${shown(g.driver || 'not known', 10)}` },
      ]} empty="No GPU was named." />
    <//>
    <${Panel} id="hbm" title="Pools in GPU memory"><${Pools} pools=${hbm} /><//>
    <${Panel} id="hbm-counts" title="Copies to GPUs, since the start">
      <${Table} caption="Copies to GPUs" rows=${[
        ['Tokens found with a copy there', tokens(c.hbm_hit_tokens), 'By matches of segments.'],
        ['Leases that found a copy', plural(c.hbm_acquired, 'lease'), ''],
        ['Leases that did not', plural(c.hbm_acquire_misses, 'lease'), 'Those requests waited for the bus.'],
        ['Copies made', `${plural(c.hbm_promotions_done, 'copy', 'copies')}, ${bytes(c.hbm_promoted_bytes)}`, ''],
        ['Copies without room', plural(c.hbm_promotions_no_room, 'copy', 'copies'), 'Leased, over quota, or the driver had no memory.'],
        ['Left for room', plural(c.hbm_dropped_room, 'copy', 'copies'), 'As many as were made: they leave before they are used.'],
        ['Failed or wrong', plural((c.hbm_promotions_failed ?? 0) + (c.hbm_promotions_corrupt ?? 0), 'copy', 'copies'), 'Not 0: read the log.'],
      ]} rowKey=${(r) => r[0]} columns=${countColumns} />
    <//>`;
}

export function Peers() {
  const from = useData('cluster', {}, { every: 10, kinds: ['peer'] });
  const k = from.data;
  useClock(5);
  if (!k) return html`<${Panel} id="peers" title="Peers"><${Missing} from=${from} what="a cluster" /><//>`;
  if (!k.enabled) return html`<${Panel} id="peers" title="Peers"><p class="absent">This node is not in a cluster: it fetches nothing from others. The settings that begin with <code>-cluster</code> make it join one (see <em>docs/cluster.md</em>).</p><//>`;
  const others = k.members.filter((m) => !m.self);
  const alive = others.filter((m) => m.state === 'alive');
  const found = findings(k, others, alive);
  return html`
    <${Panel} id="peers" title=${`Peers of cluster ${shown(k.name, 60) || '(no name)'}`} aside=${html`<${Refreshed} from=${from} every=${10} />`}>
      ${found.length ? html`<div class="attention"><ul>${found.map((f) => html`<li>${f}</li>`)}</ul></div>` : html`<p class="answer">All <strong>${plural(alive.length, 'other member')}</strong> are reachable and in use.</p>`}
      <${Stats}>
        <${Stat} label="Others alive" value=${`${count(alive.length)} of ${plural(others.filter((m) => m.state !== 'left').length, 'member')}`} title="Members of the cluster beside this node" />
        <${Stat} label="Fetched from others" value=${bytes(k.fetched_bytes)} note=${`${bytes(k.sent_bytes)} sent to them`} title="Since the start" />
        <${Stat} label="Known of others" value=${`${many(k.index.names)} names`} note=${`${bytes(k.index.bytes)} of memory; ${plural(k.index.complete, 'member')} read in whole`} title="What this node believes that others hold" />
        <${Stat} label="Told to others" value=${`${many(k.own.names)} names`} note=${bytes(k.own.bytes)} title="What this node says that it holds" />
        <${Stat} label="Protected" value=${k.gossip_encrypted ? 'gossip encrypted' : 'gossip plain'} note=${k.certificate_ends ? `certificate ends ${time(k.certificate_ends)}` : "peers' port without TLS"} title="Keys and certificates" />
      <//>
      <${Table} caption="Members" rows=${k.members} rowKey=${(m) => m.name} columns=${[
        { id: 'name', label: 'Member', cell: (m) => html`<${Name} text=${m.name} most=${40} />${m.self ? html` <span class="tag">this node</span>` : ''}`, sort: (m) => m.name },
        { id: 'state', label: 'State', cell: (m) => html`<span class=${`tag ${m.state === 'alive' ? 'good' : 'bad'}`}>${shown(m.state, 20)}</span> since <${Time} at=${m.since} />`, sort: (m) => m.state },
        { id: 'use', label: 'In use', title: 'It is asked and fetched from', cell: (m) => (m.self ? '–' : m.in_use ? 'yes' : html`no<span class="prose wrap">${m.unusable ? `: ${shown(m.unusable, 200)}` : ''}</span>`), sort: (m) => Number(m.in_use) },
        { id: 'version', label: 'Version', cell: (m) => `${shown(m.version, 30)}, protocol ${m.protocol}`, sort: (m) => m.version },
        { id: 'rtt', label: 'Round trip', num: true, title: 'Of the last ping', cell: (m) => (m.rtt_seconds === undefined ? '–' : millis(m.rtt_seconds * 1000)), sort: (m) => m.rtt_seconds },
        { id: 'speed', label: 'Fetch speed', num: true, title: 'As measured when fetching from it', cell: (m) => (m.fetch?.bytes_per_second > 0 ? perSecond(m.fetch.bytes_per_second) : '–'), sort: (m) => m.fetch?.bytes_per_second },
        { id: 'queue', label: 'Wanted of it', num: true, title: 'Bytes wanted of it that are not there yet', cell: (m) => (m.fetch ? bytes(m.fetch.queued_bytes) : '–'), sort: (m) => m.fetch?.queued_bytes },
        { id: 'index', label: 'What it holds is known', title: 'How far its set of names has been read', cell: (m) => (m.index ? html`${m.index.complete ? 'in whole' : m.index.reading ? 'being read' : 'in part'}${m.index.as_of ? html`, as of <${Ago} at=${m.index.as_of} />` : ''}` : '–'), sort: (m) => Number(m.index?.complete) },
        { id: 'address', label: 'Address', title: "Of the peers' port", cell: (m) => html`<code>${shown(m.peer || '–', 60)}</code>${m.tls ? ' TLS' : ''}`, sort: (m) => m.peer },
      ]} />
    <//>
    ${k.workers?.length > 0 && html`<${Panel} id="workers" title="Engines that compute segments for others"><${Table} caption="Workers" rows=${k.workers} rowKey=${(w) => `${w.connection} ${w.profile} ${w.tenant}`} columns=${[
      { id: 'connection', label: 'Connection', cell: (w) => `#${w.connection}`, sort: (w) => w.connection },
      { id: 'tenant', label: 'Tenant', cell: (w) => html`<${Name} text=${w.tenant} />`, sort: (w) => w.tenant },
      { id: 'jobs', label: 'Jobs', num: true, title: 'That it has, or that wait for it', cell: (w) => plural(w.jobs, 'job'), sort: (w) => w.jobs },
      { id: 'queued', label: 'Queued work', num: true, title: 'Before a new job would begin', cell: (w) => millis(w.queued_seconds * 1000), sort: (w) => w.queued_seconds }]} /><//>`}`;
}

function findings(k, others, alive) {
  const list = [];
  if (!alive.length) list.push(`No other member is there${k.join?.errors?.length ? `: ${shown(k.join.errors[0], 300)}` : '.'}`);
  for (const m of others) {
    if (m.state === 'unreachable') list.push(html`<${Name} text=${m.name} /> is out of reach since <${Time} at=${m.since} />.`);
    else if (m.state === 'failed') list.push(html`<${Name} text=${m.name} /> has failed; it was last seen <${Ago} at=${m.last_seen ?? m.since} />.`);
    else if (m.unusable && m.state === 'alive') list.push(html`<${Name} text=${m.name} /> is not worked with: ${shown(m.unusable, 300)}`);
    if (m.fetch?.breaker_open) list.push(html`<${Name} text=${m.name} /> failed too often and is left alone for a while.`);
    if (Math.abs(m.clock_ahead_seconds ?? 0) > 1) list.push(html`The clock of <${Name} text=${m.name} /> is ${millis(Math.abs(m.clock_ahead_seconds) * 1000)} ${m.clock_ahead_seconds > 0 ? 'ahead' : 'behind'}.`);
  }
  for (const r of k.rejected ?? []) list.push(`${shown(r.address, 60)} cannot be authenticated: ${shown(r.why, 300)}`);
  if (k.files_error) list.push(`A file that has changed is not in use: ${shown(k.files_error, 300)}`);
  return list;
}
