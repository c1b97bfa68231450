// Charts over time, by uPlot (a classic script: it is a global). Each says in words what it
// shows last, and has its numbers in a table for who cannot see it.
import { html, useEffect, useRef, useState } from './vendor/preact.js';
import { clock } from './format.js';

// The colour that a variable of the style has now, which a canvas cannot ask for itself.
function colour(name) {
  const probe = document.createElement('span');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const powers = Array.from({ length: 60 }, (_, i) => 2 ** i); // round numbers of bytes

const clear = (rgb, a) => rgb.replace(/^rgb\(([^)]*)\)$/, `rgba($1, ${a})`);

// series: {label, values, colour, dash}; stacked ones lie on each other, the first lowest.
export function Chart({ title, about, at, series, stacked, show, top, binary }) {
  const box = useRef(null);
  const [themed, turn] = useState(0);
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const again = () => turn((n) => n + 1);
    dark.addEventListener('change', again);
    const watch = new MutationObserver(again);
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
    return () => { dark.removeEventListener('change', again); watch.disconnect(); };
  }, []);
  useEffect(() => {
    if (!box.current || !globalThis.uPlot || at.length < 2) return undefined;
    const text = colour('--muted'), line = colour('--line');
    const sums = stacked ? series.map((s, i) => at.map((_, t) => series.slice(0, i + 1).reduce((n, x) => n + (x.values[t] ?? 0), 0))) : series.map((s) => s.values);
    // The highest of a stack is drawn first, so that those below cover it.
    const order = stacked ? series.map((_, i) => series.length - 1 - i) : series.map((_, i) => i);
    const size = () => ({ width: Math.max(200, box.current.clientWidth), height: 150 });
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    const plot = new uPlot({
      ...size(), legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } }, padding: [8, 8, 0, 0],
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), top ?? (high > 0 ? high * 1.08 : 1)] } },
      axes: [{ ...axis, size: 26, values: (_, marks) => marks.map((m) => clock(new Date(m * 1000)).slice(0, 5)) }, { ...axis, size: 76, incrs: binary ? powers : undefined, values: (_, marks) => marks.map(show) }],
      series: [{}, ...order.map((i) => {
        const c = colour(series[i].colour);
        return { label: series[i].label, stroke: c, width: 1.25, dash: series[i].dash, fill: stacked ? clear(c, 0.85) : undefined, points: { show: false }, spanGaps: false };
      })],
    }, [at, ...order.map((i) => sums[i])], box.current);
    const watch = new ResizeObserver(() => plot.setSize(size()));
    watch.observe(box.current);
    return () => { watch.disconnect(); plot.destroy(); };
  }, [at, series, themed]);
  const last = at.length - 1;
  const say = last < 0 ? 'no data yet' : series.map((s) => `${s.label} ${show(s.values[last])}`).join(', ');
  return html`<figure class="chart">
    <figcaption title=${about}><strong>${title}</strong>
      <span class="keys">${series.map((s) => html`<span class="keyed"><span class=${`dot ${s.swatch ?? ''}`} style=${{ background: `var(${s.colour})` }}></span>${s.label} <span class="muted">${last < 0 ? '' : show(s.values[last])}</span></span>`)}</span></figcaption>
    ${at.length < 2 ? html`<p class="muted nodata">No data in this time yet.</p>` : html`<div class="plot" ref=${box} role="img" aria-label=${`${title}: at the end ${say}`}></div>`}
    ${at.length >= 2 && html`<details class="numbers"><summary>Numbers</summary><${Numbers} at=${at} series=${series} show=${show} title=${title} /></details>`}
  </figure>`;
}

// The last of a chart's numbers, the newest first.
function Numbers({ at, series, show, title }) {
  const rows = at.map((t, i) => i).slice(-20).reverse();
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${`${title}, last numbers`}><table><caption class="hidden">${title}</caption>
    <thead><tr><th scope="col">time</th>${series.map((s) => html`<th scope="col" class="num">${s.label}</th>`)}</tr></thead>
    <tbody>${rows.map((i) => html`<tr><th scope="row">${clock(new Date(at[i] * 1000))}</th>${series.map((s) => html`<td class="num">${show(s.values[i])}</td>`)}</tr>`)}</tbody></table></div>`;
}
