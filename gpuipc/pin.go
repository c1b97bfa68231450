package gpuipc

import "fmt"

// Pin returns views of the host's own mapping. If the views will be written, their pages
// are backed first, in one call, so that a disk transfer does not fault them in one by one.
func (h *host) Pin(r Ref, write bool) (views [][]byte, unpin func(), err error) {
	region, ok := r.Region.(*hostRegion)
	if !ok || region.dev != h {
		return nil, nil, fmt.Errorf("pin: a region of another device: %w", ErrInvalid)
	}
	if err := region.acquire(); err != nil {
		return nil, nil, err
	}
	if err := r.within(region.Bytes(), 1); err != nil {
		region.release()
		return nil, nil, err
	}
	for _, e := range r.Extents {
		if write {
			region.populate(e.Off, e.Len)
		}
		views = append(views, region.mem[e.Off:e.Off+e.Len:e.Off+e.Len])
	}
	return views, region.release, nil
}

// Window returns the bytes [off, off+n) of a list of runs of memory, such as the views of
// Pin. The parts share memory with the runs. They have fewer than n bytes if the runs end
// earlier.
func Window(runs [][]byte, off, n int64) (parts [][]byte) {
	for _, r := range runs {
		if n == 0 {
			break
		}
		if off >= int64(len(r)) {
			off -= int64(len(r))
			continue
		}
		k := min(n, int64(len(r))-off)
		parts = append(parts, r[off:off+k])
		off, n = 0, n-k
	}
	return parts
}
