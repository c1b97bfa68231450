// Tables that sort what they have, and that draw only the rows in view when there are many.
import { html, useLayoutEffect, useMemo, useRef, useState } from './vendor/preact.js';

const few = 250; // rows up to which all are drawn
const rowHeight = 29; // pixels, as in the style
const spare = 12; // rows above and below those in view

const none = (v) => v === undefined || v === null || v === '' || Number.isNaN(v);

// What is not known is last, whichever way the order goes.
const compare = (a, b, down) => {
  if (none(a) || none(b)) return none(a) - none(b);
  return (down ? -1 : 1) * (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true }));
};

// columns: {id, label, title, cell(row), sort(row), num}. The first one names its row.
export function Table({ caption, columns, rows, rowKey, empty = 'Nothing.', sortBy, descending }) {
  const [order, setOrder] = useState({ id: sortBy ?? '', down: Boolean(descending) });
  const sorted = useMemo(() => {
    const column = columns.find((c) => c.id === order.id);
    if (!column?.sort) return rows;
    // Keys are made once a row: rows may be a hundred thousand.
    const keyed = rows.map((row, i) => [column.sort(row), i, row]);
    keyed.sort((a, b) => compare(a[0], b[0], order.down) || a[1] - b[1]);
    return keyed.map((k) => k[2]);
  }, [rows, order.id, order.down]);
  const window = useWindow(sorted.length);
  const turn = (c) => setOrder((o) => (o.id !== c.id ? { id: c.id, down: Boolean(c.num) } : { id: c.id, down: !o.down }));
  // On the side where it does not move the label away from its column.
  const arrow = (c) => html`<span class="arrow" aria-hidden="true">${order.id === c.id ? (order.down ? '▾' : '▴') : ''}</span>`;
  const drawn = window.all ? sorted : sorted.slice(window.from, window.to);
  return html`<div class=${`scroll${window.all ? '' : ' tall'}`} tabindex="0" role="group" aria-label=${caption} ref=${window.ref} onScroll=${window.all ? undefined : window.moved}>
    <table aria-rowcount=${window.all ? undefined : sorted.length + 1}>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map((c) => html`<th scope="col" class=${c.num ? 'num' : ''} title=${c.title}
        aria-sort=${c.sort ? (order.id === c.id ? (order.down ? 'descending' : 'ascending') : 'none') : undefined}>
        ${c.sort ? html`<button type="button" onClick=${() => turn(c)}>${c.num && arrow(c)}${c.label}${!c.num && arrow(c)}</button>` : c.label}</th>`)}</tr></thead>
      <tbody>
        ${!rows.length && html`<tr><td class="empty" colspan=${columns.length}>${empty}</td></tr>`}
        ${window.from > 0 && html`<tr aria-hidden="true" class="gap"><td colspan=${columns.length} style=${{ height: `${window.from * rowHeight}px` }}></td></tr>`}
        ${drawn.map((row, i) => html`<tr key=${rowKey ? rowKey(row) : i} aria-rowindex=${window.all ? undefined : window.from + i + 2}>
          ${columns.map((c, at) => (at ? html`<td class=${c.num ? 'num' : ''}>${c.cell(row)}</td>` : html`<th scope="row" class=${c.num ? 'num' : ''}>${c.cell(row)}</th>`))}</tr>`)}
        ${window.to < sorted.length && !window.all && html`<tr aria-hidden="true" class="gap"><td colspan=${columns.length} style=${{ height: `${(sorted.length - window.to) * rowHeight}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

// useWindow says which rows are in view.
function useWindow(n) {
  const ref = useRef(null);
  const [view, set] = useState({ top: 0, height: 600 });
  const moved = () => {
    const { scrollTop: top, clientHeight: height } = ref.current;
    // Steps of some rows, so that not each pixel draws anew.
    set((v) => (Math.abs(v.top - top) < (spare / 2) * rowHeight && v.height === height ? v : { top, height }));
  };
  useLayoutEffect(() => { if (n > few && ref.current) moved(); }, [n]);
  if (n <= few) return { all: true, from: 0, to: n, ref };
  const last = Math.max(0, n - Math.ceil(view.height / rowHeight));
  const from = Math.max(0, Math.min(last, Math.floor(view.top / rowHeight)) - spare);
  return { all: false, from, to: Math.min(n, Math.ceil((view.top + view.height) / rowHeight) + spare), ref, moved };
}
