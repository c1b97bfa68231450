package slab

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// A transfer is divided into pieces of pieceBytes. The number of pieces in flight at once
// is the width of the Set. Both values are guesses, since measurements differ more between
// rounds than between settings. The setup: 15 rounds alternating with fio, a slab written
// before, a virtual disk with ext4 and O_DIRECT, 2 cores kept busy by other work (load 7 to
// 12). The table has MB/s for 64 MiB in pieces of 1 MiB: the median, and the lowest and
// highest round.
//
//	                        read                 write
//	width 1             1026 (104-1594)      1445 (215-2182)
//	width 2             1025 (137-1604)      1663 (550-2267)
//	width 4             1220 (203-1658)      1762 (362-2411)
//	width 8             1126 (767-1668)      1814 (530-2351)
//	width 8, huge pages 2023 (213-2658)      3016 (880-3808)
//	fio psync, 1 MiB    1001  (71-1866)      1121 (109-2768)
//	fio libaio, 4 deep  1601 (897-2299)      1771 (629-3638)
//
// With width 8, some requests are in flight even if a worker is not scheduled. Pieces of
// 512 KiB or 2 MiB were not clearly faster or slower. Buffers in huge pages were faster
// in all settings: a request then has few segments instead of 256.
const (
	DefaultWidth = 8
	MaxWidth     = 64
	pieceBytes   = 1 << 20
)

// request is one piece of a transfer.
type request struct {
	file File
	off  int64
	bufs [][]byte
}

// Write writes all buffers to the runs, one after another. The first byte goes to offset
// off, counted from the start of the first run. The runs may be longer. After an error any
// blocks of the range may have been written.
func (s *Set) Write(runs []Run, off int64, bufs [][]byte) error {
	return s.transfer(runs, off, bufs, File.WriteAt)
}

// Read fills all buffers from the runs. The first byte comes from offset off, counted from
// the start of the first run. After an error the contents of the buffers are undefined.
func (s *Set) Read(runs []Run, off int64, bufs [][]byte) error {
	return s.transfer(runs, off, bufs, File.ReadAt)
}

// Sync returns when everything written to these slabs before the call is on the disk.
// File.Sync explains its errors.
func (s *Set) Sync(slabs ...uint32) error {
	files := make([]File, len(slabs))
	for i, n := range slabs {
		f, ok := s.file(n)
		if !ok {
			return fmt.Errorf("sync: no slab %d: %w", n, tier.ErrInvalid)
		}
		files[i] = f
	}
	errs := make([]error, len(files))
	s.each(len(files), func(i int) bool {
		errs[i] = files[i].Sync()
		return true
	})
	return errors.Join(errs...)
}

func (s *Set) file(n uint32) (File, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, ok := s.mu.slabs[n]
	return f, ok
}

// transfer divides a transfer into requests, with up to s.width in flight. Even after an
// error it waits for all requests in flight, since they use the caller's buffers.
func (s *Set) transfer(runs []Run, off int64, bufs [][]byte, move func(File, [][]byte, int64) error) error {
	requests, err := s.divide(runs, off, bufs)
	if err != nil {
		return err
	}
	errs := make([]error, len(requests))
	s.each(len(requests), func(i int) bool {
		errs[i] = move(requests[i].file, requests[i].bufs, requests[i].off)
		return errs[i] == nil
	})
	for _, err := range errs {
		if err != nil {
			return err // the error at the lowest offset; callers need only one
		}
	}
	return nil
}

// The method each calls the function do with the numbers 0 to n-1, in order, with up to
// s.width calls at a time. After do has returned false, no more calls are started.
func (s *Set) each(n int, do func(i int) bool) {
	var next atomic.Int64
	work := func() {
		for {
			i := int(next.Add(1) - 1)
			if i >= n {
				return
			}
			if !do(i) {
				next.Store(int64(n))
			}
		}
	}
	var others sync.WaitGroup
	for range min(n, s.width) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// divide divides a transfer into requests of at most pieceBytes, each inside one run.
func (s *Set) divide(runs []Run, off int64, bufs [][]byte) ([]request, error) {
	var left int64
	for _, b := range bufs {
		left += int64(len(b))
	}
	if off < 0 || off > RunBytes(runs) || left > RunBytes(runs)-off {
		return nil, fmt.Errorf("%d bytes at %d of runs of %d: %w", left, off, RunBytes(runs), tier.ErrInvalid)
	}
	v := vector{bufs: bufs}
	var requests []request
	for _, r := range runs {
		if off >= r.Len {
			off -= r.Len
			continue
		}
		r.Off, r.Len, off = r.Off+off, r.Len-off, 0
		if left == 0 {
			break
		}
		f, ok := s.file(r.Slab)
		if !ok || r.Off < BlockBytes {
			return nil, fmt.Errorf("%v: no such slab, or its header: %w", r, tier.ErrInvalid)
		}
		for end := r.Off + min(r.Len, left); r.Off < end; {
			n := min(pieceBytes, end-r.Off)
			requests = append(requests, request{file: f, off: r.Off, bufs: v.cut(nil, int(n))})
			r.Off += n
			left -= n
		}
	}
	return requests, nil
}
