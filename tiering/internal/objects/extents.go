package objects

import (
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Hole is the offset of an extent that has no memory.
const Hole = -1

// trim shortens extents of whole pages to the given number of bytes, which end in the last
// extent.
func trim(extents []gpuipc.Extent, bytes int64) []gpuipc.Extent {
	for i := range extents {
		extents[i].Len = min(extents[i].Len, bytes)
		bytes -= extents[i].Len
	}
	return extents
}

// Punch takes the memory of some runs out of a share's extents. The result kept has the
// extents with holes in place of the runs, and the result given has the memory of the runs.
// Runs are offsets in the share, in ascending order, and consist of whole pages.
func Punch(extents, runs []gpuipc.Extent) (kept, given []gpuipc.Extent) {
	at := int64(0) // offset of e in the share
	for _, e := range extents {
		for e.Len > 0 {
			for len(runs) > 0 && runs[0].Off+runs[0].Len <= at {
				runs = runs[1:]
			}
			switch {
			case len(runs) == 0 || runs[0].Off >= at+e.Len:
				kept = append(kept, e)
				at, e.Len = at+e.Len, 0
				continue
			case runs[0].Off > at:
				n := runs[0].Off - at
				kept = append(kept, gpuipc.Extent{Off: e.Off, Len: n})
				at, e.Off, e.Len = at+n, e.Off+n, e.Len-n
			}
			n := min(e.Len, runs[0].Off+runs[0].Len-at)
			given = append(given, gpuipc.Extent{Off: e.Off, Len: n})
			if last := len(kept) - 1; last >= 0 && kept[last].Off == Hole {
				kept[last].Len += n
			} else {
				kept = append(kept, gpuipc.Extent{Off: Hole, Len: n})
			}
			at, e.Off, e.Len = at+n, e.Off+n, e.Len-n
		}
	}
	return kept, given
}

// Mend puts memory into the holes of extents, in order.
func Mend(extents, memory []gpuipc.Extent) []gpuipc.Extent {
	out := make([]gpuipc.Extent, 0, len(extents)+len(memory))
	memory = slices.Clone(memory)
	for _, e := range extents {
		if e.Off != Hole {
			out = append(out, e)
			continue
		}
		for left := e.Len; left > 0; {
			n := min(left, memory[0].Len)
			out = append(out, gpuipc.Extent{Off: memory[0].Off, Len: n})
			left -= n
			if memory[0].Off, memory[0].Len = memory[0].Off+n, memory[0].Len-n; memory[0].Len == 0 {
				memory = memory[1:]
			}
		}
	}
	return out
}

// Gather returns the parts of ref that the runs cover, joined in order.
func Gather(ref gpuipc.Ref, runs []gpuipc.Extent) gpuipc.Ref {
	out := gpuipc.Ref{Region: ref.Region}
	for _, run := range runs {
		out.Extents = append(out.Extents, ref.Slice(run.Off, run.Len).Extents...)
	}
	return out
}
