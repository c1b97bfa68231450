package objects

import (
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

func TestPunchAndMend(t *testing.T) {
	extents := []gpuipc.Extent{{Off: 1000, Len: 40}, {Off: 0, Len: 20}, {Off: 500, Len: 15}}
	for _, runs := range [][]gpuipc.Extent{
		nil,
		{{Off: 0, Len: 75}},
		{{Off: 0, Len: 10}, {Off: 30, Len: 20}, {Off: 70, Len: 5}},
		{{Off: 10, Len: 55}},
		{{Off: 40, Len: 20}},
	} {
		var want int64
		for _, run := range runs {
			want += run.Len
		}
		kept, given := Punch(extents, runs)
		if holes := missing(kept); holes != want || (gpuipc.Ref{Extents: given}).Len() != want {
			t.Errorf("runs %v: holes of %d bytes, %v given, want %d", runs, holes, given, want)
		}
		whole := gpuipc.Ref{Extents: Mend(kept, given)}
		if !whole.Equal(gpuipc.Ref{Extents: extents}) {
			t.Errorf("runs %v: mended %v", runs, whole.Extents)
		}
		elsewhere := Mend(kept, []gpuipc.Extent{{Off: 5000, Len: 7}, {Off: 6000, Len: 100}})
		if missing(elsewhere) != 0 || (gpuipc.Ref{Extents: elsewhere}).Len() != 75 {
			t.Errorf("runs %v: mended with other memory: %v", runs, elsewhere)
		}
	}
}

// missing is how many bytes of extents are holes.
func missing(extents []gpuipc.Extent) (bytes int64) {
	for _, e := range extents {
		if e.Off == Hole {
			bytes += e.Len
		}
	}
	return bytes
}
