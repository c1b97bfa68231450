package codec

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// encoding is one call of Encode.
type encoding struct {
	header
	src, table, body []byte
}

func (e *encoding) chunk(i int) []byte { return e.src[i*e.header.chunk:][:e.rawBytes(i)] }

// inTurn encodes the chunks one by one, each directly after the previous one, and returns
// their total size in bytes.
func (e *encoding) inTurn() int {
	w := workers.Get().(*worker)
	defer workers.Put(w)
	at := 0
	for i := range e.chunks() {
		row := w.encode(e.body[at:], e.chunk(i), e.dt)
		putEntry(e.table, i, row)
		at += row.stored()
	}
	return at
}

// atOnce encodes chunks in parallel. It writes each to the offset that it would have
// uncompressed, then moves all chunks together (a few per cent of the encoding time), and
// returns their total size.
func (e *encoding) atOnce(width int) int {
	_ = each(e.chunks(), width, func(w *worker, i int) error {
		putEntry(e.table, i, w.encode(e.body[i*e.header.chunk:], e.chunk(i), e.dt))
		return nil
	})
	at := 0
	for i := range e.chunks() {
		at += copy(e.body[at:], e.body[i*e.header.chunk:][:getEntry(e.table, i).stored()])
	}
	return at
}

// decoding is one call of Decode.
type decoding struct {
	header
	dst, src []byte
}

// run decodes all chunks. It checks the whole table before it writes any byte.
func (d *decoding) run(width int) error {
	at := make([]int, d.chunks())
	if err := d.walk(d.src, func(i int, _ entry, from int) { at[i] = from }); err != nil {
		return err
	}
	table := d.src[headerBytes:]
	return each(d.chunks(), width, func(w *worker, i int) error {
		e := getEntry(table, i)
		dst := d.dst[i*d.chunk:][:d.rawBytes(i)]
		if err := w.decode(dst, d.src[at[i]:][:e.stored()], e, d.dt); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		return nil
	})
}

// The function each calls the function do n times, with the numbers 0 to n-1. The parameter
// width is the most calls that run at once. each waits for all calls. After an error it
// starts no more calls, and returns one of the errors.
func each(n, width int, do func(w *worker, i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	loop := func() {
		w := workers.Get().(*worker)
		defer workers.Put(w)
		for failed.Load() == nil {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			if err := do(w, i); err != nil {
				failed.Store(&err)
			}
		}
	}
	var others sync.WaitGroup
	for range min(width, n) - 1 {
		others.Go(loop)
	}
	loop()
	others.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
