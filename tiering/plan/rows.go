package plan

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// rowRun is the rows of consecutive tokens in one place: in a page of a buffer, or in a
// checkpoint of kind Rows.
type rowRun struct {
	ref   gpuipc.Ref // the whole place
	parts *PartMap   // layout of the place
	at, n int        // the selected rows: n rows from index at on
}

// part returns the selected rows of one part of a layer.
func (r rowRun) part(layer int, kind profile.PartKind) gpuipc.Ref {
	part, _ := r.parts.Part(layer, kind)
	return r.rows(&part)
}

func (r rowRun) rows(part *profile.Part) gpuipc.Ref {
	row := part.Len / int64(part.Shape[0])
	return r.ref.Slice(part.Off+int64(r.at)*row, int64(r.n)*row)
}

// cut returns n rows of a list of runs, after the first skip rows.
func cut(runs []rowRun, skip, n int) []rowRun {
	var out []rowRun
	for _, r := range runs {
		drop := min(skip, r.n)
		skip -= drop
		r.at, r.n = r.at+drop, min(r.n-drop, n)
		if n -= r.n; r.n > 0 {
			out = append(out, r)
		}
	}
	return out
}

// moveRows copies n rows of a part.
func (d *Device) moveRows(ctx context.Context, to, from gpuipc.Ref, part *profile.Part, n int) error {
	job := gpuipc.RotateJob{
		Rows: n, Heads: 1, Dim: part.Shape[1] * part.Shape[2], Type: gpuipc.DType(part.DType), Src: from,
		Dst: gpuipc.Scatter{Rows: to},
	}
	return d.check(d.Rotate(ctx, &job), "rows of layer %d", part.Layer)
}

// pageRows is the number of rows by which a buffer grows. A request drafts about as many.
// It is also about the number of rows that decoding keeps next to a state before it writes
// a new state (KVBuffer §4.1).
const pageRows = 16

// page is memory for rows of consecutive tokens.
type page struct {
	memory *Claimed
	parts  *PartMap
	begin  int // prompt position of the first row
	rows   int
}

func (p *page) end() int { return p.begin + p.rows }

// pages are the pages of a buffer, in order.
type pages []page

// runs returns the rows of n tokens from prompt position token on.
func (ps pages) runs(token, n int) []rowRun {
	var all []rowRun
	skip := 0
	for i := range ps {
		if p := &ps[i]; p.end() > token {
			if all == nil {
				skip = token - p.begin
			}
			all = append(all, rowRun{p.memory.Memory, p.parts, 0, p.rows})
		}
	}
	return cut(all, skip, n)
}

// lack returns how many rows have no page if n rows are appended at position token.
func (ps pages) lack(token, n int) int {
	if len(ps) == 0 {
		return n
	}
	return max(0, token+n-ps[len(ps)-1].end())
}

// behind removes and returns the pages whose rows are all at the position token or later.
// The method before removes and returns the pages whose rows are all before the position
// token.
func (ps *pages) behind(token int) (out pages) {
	n := len(*ps)
	for n > 0 && (*ps)[n-1].begin >= token {
		n--
	}
	out = append(out, (*ps)[n:]...)
	*ps = (*ps)[:n:n]
	return out
}

func (ps *pages) before(token int) (out pages) {
	n := 0
	for n < len(*ps) && (*ps)[n].end() <= token {
		n++
	}
	out = append(out, (*ps)[:n]...)
	*ps = append(pages(nil), (*ps)[n:]...)
	return out
}

func (ps pages) release() {
	for i := range ps {
		ps[i].memory.Release()
	}
}
