package slab

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// How a transfer is divided. The width is a guess, and so is the size of a piece: 15
// rounds alternating with fio, on a slab written before, on 2 cores kept busy by other
// work (load 7 to 12; virtual disk, ext4, O_DIRECT), differ more between rounds than
// between settings. Medians of 64 MiB in pieces of 1 MiB, MB/s, with the lowest and the
// highest round:
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
// Eight keep something in flight when a worker is not scheduled. Pieces of 512 KiB and 2
// MiB gave no clear order. All rows of that run agree that buffers in huge pages are
// faster: a request then has few segments instead of 256.
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

// Write writes all buffers to the runs, one after another, starting off bytes after the
// start of the first run. The runs may be longer. After an error any blocks of the range
// may have been written.
func (s *Set) Write(runs []Run, off int64, bufs [][]byte) error {
	return s.transfer(runs, off, bufs, File.WriteAt)
}

// Read fills all buffers from the runs, starting off bytes after the start of the first
// run. After an error the contents of the buffers are undefined.
func (s *Set) Read(runs []Run, off int64, bufs [][]byte) error {
	return s.transfer(runs, off, bufs, File.ReadAt)
}

// Sync returns when everything written to these slabs before is on the disk. See
// File.Sync for the meaning of an error.
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

// transfer has up to width requests in flight, and waits for all of them even after one
// has failed, since they use the caller's buffers.
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
			return err // the first in the order of bytes; one is enough to act on
		}
	}
	return nil
}

// each calls do for 0 to n-1, in order, up to width at a time, and starts no more calls
// after one returned false.
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

// divide cuts a transfer into pieces that do not cross the ends of runs.
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
