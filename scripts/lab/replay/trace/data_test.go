package trace

import (
	"errors"
	"io"
	"testing"

	"github.com/spliced-kv/spliced/policy/tracetest"
)

// dataFile finds a published trace, or skips.
func dataFile(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("long: reads whole traces")
	}
	return tracetest.Path(t, name)
}

// drain counts what a trace holds.
type sums struct{ requests, input, symbols, output, pieces int }

func drain(t *testing.T, path string, o Options) (sums, *Reader) {
	t.Helper()
	r, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var s sums
	var q Request
	for {
		err := r.Next(&q)
		if errors.Is(err, io.EOF) {
			return s, r
		}
		if err != nil {
			t.Fatal(err)
		}
		s.requests++
		s.input += q.InputTokens
		s.symbols += len(q.Input)
		s.output += len(q.Output)
		s.pieces += len(q.Pieces)
	}
}

// The counts are those that the traces are published with.
func TestPublishedTracesAreReadWhole(t *testing.T) {
	for _, c := range []struct {
		file, member string
		want         sums
		info         Info
	}{
		{"mooncake_conversation_trace.jsonl.zst", "", sums{12031, 144793823, 276491, 0, 0}, Info{Mooncake, Prompts, 512}},
		{"swe100_orders.tar.zst", "swe100_c5_sps1_art7.5", sums{3365, 26678727, 26678727, 861931, 0}, Info{Sessions, Prompts, 1}},
		{"swe100_orders.tar.zst", "swe100_app_sps1_art7.5.csv", sums{3336, 37736751, 37736751, 854418, 0}, Info{Sessions, Prompts, 1}},
		{"rag_musique_zipf1.csv.zst", "", sums{2000, 11940355, 0, 0, 20000}, Info{Passages, FlatPieces, 1}},
		{"sparse_depths_quality.csv.zst", "", sums{1010, 6273950, 0, 0, 0}, Info{Depths, Overlaps, 1}},
	} {
		got, r := drain(t, dataFile(t, c.file), Options{Member: c.member})
		if got != c.want || r.Info() != c.info {
			t.Errorf("%s %s: %+v of %+v, want %+v of %+v", c.file, c.member, got, r.Info(), c.want, c.info)
		}
		// What follows a member of an archive is not read.
		if done, total := r.Progress(); done != total && (c.member == "" || done == 0) {
			t.Errorf("%s: read %d of %d bytes", c.file, done, total)
		}
	}
}
