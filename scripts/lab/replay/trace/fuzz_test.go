package trace

import (
	"slices"
	"strings"
	"testing"
)

// decoders are the line decoders, each ready for a first line.
func decoders() []func(line []byte, r *Request) error {
	texts := func() *trajectories {
		return &trajectories{in: newLines("texts", strings.NewReader(trajectoriesText))}
	}
	ownTrace, err := newOwn([]byte(`{"spliced_trace":1,"block_tokens":16}`))
	if err != nil {
		panic(err)
	}
	return []func(line []byte, r *Request) error{
		mooncake,
		(&sessions{texts: texts()}).decode,
		(&passages{lengths: map[int]int{0: 5, 1: 7}}).decode,
		(&depths{}).decode,
		ownTrace.decode,
		func(line []byte, _ *Request) error { _, err := decodeTrajectory(line); return err },
		func(line []byte, _ *Request) error { _, err := newOwn(line); return err },
	}
}

// What a decoder accepts has to be a request: lengths that agree, nothing out of
// bounds, the same each time.
func FuzzLines(f *testing.F) {
	for _, line := range []string{
		strings.TrimSpace(mooncakeWith("[0]")), "0.5,1,0,4,2", "0,1,25", "0,9,300,256,-1,0,0", `{"tokens":[1,2],"cuts":[1],"segments":[["d",2]]}`,
		`{"hashes":["x",1],"output":["x"]}`, `{"blocks":[[1],[2]],"output":[3],"timestamp":5}`, strings.SplitN(trajectoriesText, "\n", 2)[0], `{"spliced_trace":1}`,
	} {
		for i := range decoders() {
			f.Add(byte(i), []byte(line))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, line []byte) {
		if len(line) > 1<<16 {
			return
		}
		sniff(line)
		i := int(which) % len(decoders())
		var r, again Request
		r.reset(1)
		again.reset(1)
		err := decoders()[i](line, &r)
		if second := decoders()[i](line, &again); (err == nil) != (second == nil) || err == nil && show(r) != show(again) {
			t.Fatalf("%q: %v %s, then %v %s", line, err, show(r), second, show(again))
		}
		if err != nil {
			return
		}
		tokens := 0
		for _, p := range r.Pieces {
			tokens += p.Tokens
		}
		if r.InputTokens < 0 || r.InputTokens > maxTokens || tokens > r.InputTokens || r.OutputTokens < 0 || r.Time < 0 ||
			!slices.IsSorted(r.Cuts) || r.Overlap.Depth < 0 || r.Overlap.Depth > r.Overlap.Tokens {
			t.Fatalf("%q: %s", line, show(r))
		}
		if i != 4 && len(r.Input) > r.InputTokens {
			t.Fatalf("%q: %d symbols for %d tokens", line, len(r.Input), r.InputTokens)
		}
	})
}
