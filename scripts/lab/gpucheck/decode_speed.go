package gpucheck

import (
	"errors"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

const (
	// decodeBuffer is the number of rows of a buffer. The paper KVBuffer found this number best
	// for 128 dimensions (§3.2).
	decodeBuffer = 16
	// decodeDrafts is the number of new rows in a verification: one accepted token and four
	// drafts.
	decodeDrafts = 5
	// decodeQueries is the number of query heads per key head.
	decodeQueries = 8
)

// decodeSpeed times the kernels with which an engine decodes a token: decoding with rows next to
// states, and attention over runs of pages. Most rows of the report time one request in
// Sizes.Layers layers. The rows of decodeSpeed time one layer for several requests at once.
func (c *check) decodeSpeed(w *stopwatch) error {
	if err := c.bufferSpeed(w); err != nil {
		return err
	}
	return c.attendSpeed(w)
}

// bufferForm is a way to decode. pending is the number of rows that are already in the buffer,
// and rows the number of new rows. state and flush say whether the kernel reads a state and
// flushes the rows into it.
type bufferForm struct {
	name          string
	pending, rows int
	state, flush  bool
}

// bufferSpeed compares forms of decoding with a copy of the same number of bytes. It also
// compares the mean step of a buffer with the recurrent form, which reads and writes states at
// every token. In the paper, a buffer needs 0.55 of the recurrent form's time on an L40S
// (KVBuffer, Fig. 4).
func (c *check) bufferSpeed(w *stopwatch) error {
	forms := []bufferForm{
		{"the recurrent form", 0, 1, true, true},
		{"a token beside 8 rows", decodeBuffer / 2, 1, true, false},
		{"a token and a flush of 16 rows", decodeBuffer - 1, 1, true, true},
		{"5 tokens beside 8 rows", decodeBuffer / 2, decodeDrafts, true, false},
		{"a token beside 128 rows without a state", c.Sizes.Dim, 1, false, false},
	}
	took := make([]float64, len(forms))
	for i, f := range forms {
		var err error
		if took[i], err = c.bufferForm(w, f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	step := (took[1]*(decodeBuffer-1) + took[2]) / decodeBuffer
	c.report.AtMost(fmt.Sprintf("decode, mean step of a buffer of %d rows, beside the recurrent form", decodeBuffer), step*1e6, "us", took[0]*1e6)
	c.report.AtMost(fmt.Sprintf("decode, %d tokens at once, beside as many recurrent steps", decodeDrafts), took[3]*1e6, "us", decodeDrafts*took[0]*1e6)
	return nil
}

// bytes returns the bytes that a request must move, and the bytes of its state, of its rows and
// of its input.
func (f bufferForm) bytes(z Sizes) (moved, state, rows, in int64) {
	keys := z.Heads / 2
	row := int64(2*keys*z.Dim + 2*z.Heads*z.Dim + 4*z.Heads)
	state = int64(4 * z.Heads * z.Dim * z.Dim)
	rows = decodeRoom(row * int64(f.pending+f.rows))
	in = decodeRoom(int64(f.rows * (2*2*keys*z.Dim + 2*2*z.Heads*z.Dim + 8*z.Heads)))
	moved = row*int64(f.pending) + in
	if f.state {
		moved += state
	}
	if f.flush {
		moved += state
	} else {
		moved += row * int64(f.rows)
	}
	return moved, state, rows, in
}

func decodeRoom(n int64) int64 { return (n + 255) / 256 * 256 }

func (c *check) bufferForm(w *stopwatch, f bufferForm) (took float64, err error) {
	defer func() { err = errors.Join(err, w.free()) }()
	z := c.Sizes
	moved, state, rows, in := f.bytes(z)
	each := state + rows + in + 4*256
	turns, err := w.turnsPast(int64(z.Layers)*moved, mostTurns)
	if err != nil {
		return 0, err
	}
	total := each * int64(z.Layers*turns)
	base, err := w.alloc(total)
	if err != nil {
		return 0, err
	}
	// The memory is filled with zeros, because they stay finite however often the kernels decay
	// and add them.
	if err := w.fill(base, make([]byte, 1<<20), total); err != nil {
		return 0, err
	}
	variants := make([][]kernels.Launch, turns)
	for i := range variants {
		var jobs []kernels.BufferJob
		for r := range z.Layers {
			jobs = append(jobs, f.job(z, uint64(base)+uint64(each)*uint64(i*z.Layers+r)))
		}
		if variants[i], err = kernels.Buffer(jobs); err != nil {
			return 0, err
		}
	}
	name := fmt.Sprintf("decode, %s, %d requests, %d heads %dx%d", f.name, z.Layers, z.Heads, z.Dim, z.Dim)
	return c.beside(w, name, int64(z.Layers)*moved, variants, 0)
}

// job returns one request whose state and rows begin at an address.
func (f bufferForm) job(z Sizes, at uint64) kernels.BufferJob {
	_, state, _, _ := f.bytes(z)
	keys := z.Heads / 2
	a := kernels.BufferJob{Heads: z.Heads, KeyHeads: keys, DK: z.Dim, DV: z.Dim, Type: kernel.BF16, Delta: true, Capacity: f.pending + f.rows, Pending: f.pending,
		New: kernels.BufferRows{N: f.rows, Type: kernel.BF16}}
	if f.state {
		a.From = at
	}
	if f.flush {
		a.Out = at
	}
	at += uint64(state)
	take := func(n int) uint64 {
		p := at
		at += uint64(n+15) / 16 * 16
		return p
	}
	all := f.pending + f.rows
	a.K, a.U, a.G = take(2*all*keys*z.Dim), take(2*all*z.Heads*z.Dim), take(4*all*z.Heads)
	a.New.Q, a.New.K, a.New.V = take(2*f.rows*keys*z.Dim), take(2*f.rows*keys*z.Dim), take(2*f.rows*z.Heads*z.Dim)
	a.New.Outputs, a.New.G, a.New.Beta = take(2*f.rows*z.Heads*z.Dim), take(4*f.rows*z.Heads), take(4*f.rows*z.Heads)
	return a
}

// attendSpeed times one token of several requests, each over four segments. It does so with
// separate segments per request, and with the same segments for all requests; shared segments
// may be read from the L2 cache.
func (c *check) attendSpeed(w *stopwatch) error {
	requests := max(2, c.Sizes.Layers/2)
	own, err := c.attendForm(w, "segments of their own", requests, requests)
	if err != nil {
		return err
	}
	same, err := c.attendForm(w, "one copy of segments at places of their own", requests, 1)
	if err != nil {
		return err
	}
	c.report.AtMost("attention over one copy, beside one each", same*1e6, "us", 1.05*own*1e6)
	return nil
}

const attendSegments = 4

func (c *check) attendForm(w *stopwatch, what string, requests, copies int) (took float64, err error) {
	defer func() { err = errors.Join(err, w.free()) }()
	z := c.Sizes
	const token = attentionHeads * attentionDim * 2
	blocks := (z.Rows + attentionBlock - 1) / attentionBlock
	pool := int64(copies*attendSegments*blocks) * attentionBlock * token
	turns, err := w.turnsPast(2*pool, mostTurns)
	if err != nil {
		return 0, err
	}
	base, err := w.alloc(2 * pool * int64(turns))
	if err != nil {
		return 0, err
	}
	if err := w.fill(base, c.random(1<<20, kernel.BF16, 1), 2*pool*int64(turns)); err != nil {
		return 0, err
	}
	query := decodeRoom(attentionHeads * decodeQueries * attentionDim * 2)
	queries, err := w.alloc(2 * query * int64(requests))
	if err != nil {
		return 0, err
	}
	if err := w.fill(queries, c.random(1<<16, kernel.BF16, 1), 2*query*int64(requests)); err != nil {
		return 0, err
	}
	var variants [][]kernels.Launch
	for i := range turns {
		jobs := c.attendJobs(requests, copies, blocks, uint64(base)+uint64(2*pool)*uint64(i), uint64(pool))
		for r := range jobs {
			jobs[r].Q = uint64(queries) + uint64(2*query)*uint64(r)
			jobs[r].Out = jobs[r].Q + uint64(query)
		}
		n, err := kernels.AttendScratch(jobs)
		if err != nil {
			return 0, err
		}
		scratch, err := w.alloc(n)
		if err != nil {
			return 0, err
		}
		launches, err := kernels.Attend(jobs, uint64(scratch))
		if err != nil {
			return 0, err
		}
		variants = append(variants, launches)
	}
	read := int64(requests) * 2 * int64(attendSegments*z.Rows) * token
	name := fmt.Sprintf("attention of a token, %d requests over %d segments of %d tokens, %s", requests, attendSegments, z.Rows, what)
	if copies == requests {
		return c.beside(w, name, read, variants, 0)
	}
	x := &timed{}
	for _, launches := range variants {
		if err := w.prepare(launches); err != nil {
			return 0, err
		}
		x.variants = append(x.variants, func() error { return w.launch(launches) })
	}
	t, err := w.medians(z.Rounds, x)
	if err != nil {
		return 0, err
	}
	c.report.Add(Row{Name: name + ", as read by each", Value: float64(read) / t[0] / 1e9, Unit: "GB/s", OK: true})
	return t[0], nil
}

// attendJobs returns one job per request. Each request attends to four segments. Memory holds
// the given number of copies of these segments, and the requests use the copies in turn.
func (c *check) attendJobs(requests, copies, blocks int, keys, pool uint64) []kernels.AttendJob {
	z := c.Sizes
	const token = attentionHeads * attentionDim * 2
	order := c.rng.Perm(copies * attendSegments * blocks)
	var jobs []kernels.AttendJob
	for r := range requests {
		job := kernels.AttendJob{Rows: 1, Heads: attentionHeads * decodeQueries, KeyHeads: attentionHeads, KeyDim: attentionDim, ValueDim: attentionDim,
			Type: kernel.BF16, QType: kernel.BF16, Scale: float32(1 / math.Sqrt(attentionDim))}
		for s := range attendSegments {
			k := kernels.AttendRows{Base: keys, BlockStride: attentionBlock * token, RowStride: token, HeadStride: attentionDim * 2}
			v := k
			v.Base += pool
			// Each request has the segments in a different order.
			which := r%copies*attendSegments + (s+r)%attendSegments
			table := make([]uint32, blocks)
			for i := range table {
				table[i] = uint32(order[which*blocks+i])
			}
			var turn *gpuipc.Rotation
			if job.Begin > 0 {
				turn = c.sameTurn(attentionDim / 4)
			}
			job.Runs = append(job.Runs, kernels.AttendRun{Rows: z.Rows, Begin: job.Begin, Keys: k, Values: v, Blocks: table, BlockRows: attentionBlock, Turn: turn})
			job.Begin += z.Rows
		}
		jobs = append(jobs, job)
	}
	return jobs
}
