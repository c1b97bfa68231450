package cuda

import (
	"fmt"
	"sort"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// checker makes the checks of one operation and keeps the regions of the operation in use.
type checker struct{ gpuipc.Checker }

func (d *device) checker() *checker { return &checker{gpuipc.Checker{Holder: d}} }

// Hold keeps a region of this device in use for an operation.
func (d *device) Hold(r gpuipc.Region) error {
	own, ok := r.(*region)
	if !ok || own.dev != d {
		return fmt.Errorf("cuda: the region is not one of this device: %w", gpuipc.ErrInvalid)
	}
	return own.hold()
}

// letGo releases all regions.
func (c *checker) letGo() {
	for _, r := range c.Regions() {
		r.(*region).letGo()
	}
}

// run is a run of n bytes. The field at is its device address.
type run struct {
	at driver.DevicePtr
	n  int64
}

// object is a checked Ref as device addresses. Its runs are in the order of the object, and
// adjacent runs are joined.
type object struct {
	runs []run
	n    int64
}

// objectOf returns the addresses of a checked Ref.
func objectOf(r gpuipc.Ref) object {
	var o object
	for _, e := range r.Extents {
		if e.Len > 0 {
			o.add(r.Region.(*region), e)
		}
	}
	return o
}

// add appends an extent, cut where one span of the region ends and the next begins.
func (o *object) add(r *region, e gpuipc.Extent) {
	for i := r.spanOf(e.Off); e.Len > 0; i++ {
		s := &r.spans[i]
		in := e.Off - s.off
		n := min(e.Len, s.bytes-in)
		at := s.at + driver.DevicePtr(in)
		if k := len(o.runs) - 1; k >= 0 && o.runs[k].at+driver.DevicePtr(o.runs[k].n) == at {
			o.runs[k].n += n
		} else {
			o.runs = append(o.runs, run{at, n})
		}
		o.n += n
		e.Off, e.Len = e.Off+n, e.Len-n
	}
}

// spanOf returns the index of the span that contains off.
func (r *region) spanOf(off int64) int {
	return sort.Search(len(r.spans), func(i int) bool { return r.spans[i].off > off }) - 1
}

// slice returns the bytes [off, off+n) of the object.
func (o *object) slice(off, n int64) object {
	if off == 0 && n == o.n {
		return *o
	}
	out := object{n: n}
	for i := 0; n > 0; i++ {
		r := o.runs[i]
		if off >= r.n {
			off -= r.n
			continue
		}
		k := min(n, r.n-off)
		out.runs = append(out.runs, run{r.at + driver.DevicePtr(off), k})
		off, n = 0, n-k
	}
	return out
}

// The method one reports whether the object has one address, or none because it is empty.
func (o *object) one() bool { return len(o.runs) <= 1 }

// at returns the address of an object that has only one; 0 if it is empty.
func (o *object) at() driver.DevicePtr {
	if len(o.runs) == 0 {
		return 0
	}
	return o.runs[0].at
}

// copyRuns enqueues the copy of src to dst, which has the same size, within the device.
func (l *lane) copyRuns(dst, src object) error {
	l.busy = true
	to, from := dst.runs, src.runs
	var in, out int64 // bytes of from[0] and of to[0] that are copied already
	for len(to) > 0 && len(from) > 0 {
		n := min(to[0].n-out, from[0].n-in)
		if err := l.dev.api.MemcpyDtoDAsync(to[0].at+driver.DevicePtr(out), from[0].at+driver.DevicePtr(in), n, l.stream); err != nil {
			return err
		}
		if out += n; out == to[0].n {
			to, out = to[1:], 0
		}
		if in += n; in == from[0].n {
			from, in = from[1:], 0
		}
	}
	return nil
}
