// The frame around every page: where one is, whether the daemon answers, theme and token.
import { html, render, useEffect, useRef, useState } from './vendor/preact.js';
import { daemon, look, on, setToken, useDaemon } from './daemon.js';
import { events, startEvents } from './events.js';
import { ago, clock, exact, shown } from './format.js';
import { Name, useClock, useEvents, useRoute } from './parts.js';
import { Overview } from './overview.js';
import { Requests } from './requests.js';
import { Checkpoints, Decisions, Events, Segments } from './held.js';
import { Canary, Connections, Disk, GPU, Peers, Tenants } from './node.js';

const pages = [
  { id: 'overview', title: 'Overview', of: Overview, href: '#/' },
  { id: 'requests', title: 'Requests', of: Requests, about: 'What came, and where each of its tokens came from' },
  { id: 'segments', title: 'Segments', of: Segments, about: 'Pieces of prompts that are held' },
  { id: 'checkpoints', title: 'Checkpoints', of: Checkpoints, about: 'Saved states that prompts continue from' },
  { id: 'tenants', title: 'Tenants', of: Tenants, about: 'Hit ratio, use and quota by tenant and model' },
  { id: 'decisions', title: 'Decisions', of: Decisions, about: 'Why something was kept or evicted, and settings' },
  { id: 'canary', title: 'Canary', of: Canary, about: 'Whether what is reused is as good as what is computed' },
  { id: 'connections', title: 'Connections', of: Connections, about: 'Engines, their versions, connections and leases' },
  { id: 'disk', title: 'Disk', of: Disk, about: 'Speed, errors, and what the last start brought back' },
  { id: 'gpu', title: 'GPU', of: GPU, about: 'Memory of GPUs (HBM)' },
  { id: 'peers', title: 'Peers', of: Peers, about: 'Other nodes of the cluster' },
  { id: 'events', title: 'Events', of: Events, about: 'What happens, as it happens' },
];

function App() {
  const route = useRoute();
  const d = useDaemon();
  const page = pages.find((p) => p.id === route.page);
  const title = useRef(null);
  const first = useRef(true);
  const name = d.status?.node ?? '';
  const id = [route.page, ...route.rest].join('/');
  useEffect(() => { document.title = [page?.title ?? 'Not found', shown(name, 60), 'spliced'].filter(Boolean).join(' · '); }, [page, name]);
  useEffect(() => { // who cannot see the page is told that it is another one
    if (!first.current && !route.params.show) { title.current?.focus({ preventScroll: true }); scrollTo(0, 0); }
    first.current = false;
  }, [id]);
  const skip = (e) => { e.preventDefault(); title.current?.focus(); };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Head} d=${d} />
    <nav aria-label="Pages"><ul>${pages.map((p) => html`<li><a href=${p.href ?? `#/${p.id}`} title=${p.about} aria-current=${p.id === route.page ? 'page' : undefined}>${p.title}</a></li>`)}</ul></nav>
    <main id="main">
      <${Banner} d=${d} />
      <h1 ref=${title} tabindex="-1" class=${page?.id === 'overview' ? 'hidden' : ''}>${page?.title ?? 'Not found'}</h1>
      ${d.phase === 'locked' ? html`<${Ask} d=${d} />` : d.phase === 'refused' ? html`<section class="panel" id="refused" aria-labelledby="refused-title"><header><h2 id="refused-title">Not served here</h2></header><p class="wrap" role="alert">${shown(d.why, 400)}</p></section>` : page ? html`<${page.of} route=${route} key=${id} />` : html`<p class="absent">There is no page of that name. <a href="#/">Overview</a></p>`}
    </main>`;
}

function Head({ d }) {
  useClock(5);
  const s = d.status;
  const bad = (s?.checks ?? []).filter((c) => c.state !== 'ok');
  const state = d.phase === 'down' ? ['bad', 'no answer'] : !s ? ['', d.phase === 'locked' ? 'needs a token' : d.phase === 'refused' ? 'not served here' : 'asking…']
    : !s.ready ? ['bad', 'not ready'] : bad.length ? ['warn', 'works with less'] : ['good', 'ready'];
  return html`<header class="head">
    <a class="brand" href="#/"><span aria-hidden="true" class="logo"></span>spliced</a>
    ${s && html`<span class="node" title="Name of this node"><${Name} text=${s.node} most=${40} /></span>`}
    <span class=${`tag ${state[0]}`} id="state" title=${bad.map((c) => c.name).join(', ')}>${state[1]}</span>
    ${s && html`<span class="muted fact" title="Version of the daemon">version <${Name} text=${s.version} most=${24} /></span>
      <span class="muted fact" title=${`Started ${exact(s.started)}`}>started ${ago(s.started)}</span>`}
    <span class="right"><${Live} /> <${Theme} /></span>
  </header>`;
}

function Live() {
  useEvents();
  const modes = {
    live: ['live', 'Events of the daemon reach this page as they happen'],
    polling: ['every 3 s', 'A stream does not get through, so that the page asks for events'],
    absent: ['refreshed', 'This daemon has no events: pages ask again every some seconds'],
    off: ['not live', 'No stream of events now; it is tried again'],
  };
  const [text, title] = modes[events.mode];
  return html`<span class=${`live is-${events.mode}`} id="live" title=${title}>${text}</span>`;
}

const themes = { '': 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' };

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? '');
  const turn = () => {
    const names = Object.keys(themes), next = names[(names.indexOf(theme) + 1) % names.length];
    if (next) document.documentElement.dataset.theme = next; else delete document.documentElement.dataset.theme;
    try { if (next) localStorage.setItem('spliced-theme', next); else localStorage.removeItem('spliced-theme'); } catch { /* for this page only */ }
    set(next);
  };
  return html`<button type="button" class="small" id="theme" onClick=${turn} title="Light, dark, or as the system has it">${themes[theme]}</button>`;
}

// What is wrong with all that is shown: said once, and loudly.
function Banner({ d }) {
  const [restarted, set] = useState(null);
  useClock(1);
  useEffect(() => on('restarted', () => set(daemon.restarted)), []);
  return html`<div class="banners">
    <div role="alert">${d.phase === 'down' && html`<div class="banner" id="dead"><strong>The daemon does not answer.</strong> ${d.why}.
      ${d.lastGood ? html` What is shown was last good at <time datetime=${exact(d.lastGood)}>${clock(d.lastGood)}</time>.` : ' Nothing has been shown yet.'} It is tried again every 2 s.</div>`}</div>
    <div role="status">${restarted && d.phase === 'up' && html`<div class="banner calm" id="restarted">The daemon was restarted, at ${clock(restarted)}. <a href="#/disk?show=restart">What it brought back</a>
      <button type="button" class="small" onClick=${() => set(null)}>Close</button></div>`}</div>
  </div>`;
}

function Ask({ d }) {
  const box = useRef(null);
  useEffect(() => box.current?.focus(), []);
  const submit = (e) => { e.preventDefault(); if (box.current.value.trim()) setToken(box.current.value.trim()); };
  return html`<section class="panel ask" aria-labelledby="ask-title"><header><h2 id="ask-title">A token, please</h2></header>
    <p role="alert">${d.why}</p>
    <form onSubmit=${submit}><label>Token <input ref=${box} type="password" name="token" autocomplete="off" spellcheck=${false} /></label> <button type="submit">Use it</button></form>
    <p class="muted">It is kept until this tab is closed, and sent to this daemon only.</p></section>`;
}

const place = document.getElementById('app');
place.replaceChildren(); // what stood there until now
render(html`<${App} />`, place);
look().then(startEvents);
