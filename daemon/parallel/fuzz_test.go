package parallel

import (
	"bytes"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
)

// messages of each kind, with every field in use.
var (
	someScope = scopeTag{fingerprint: profile.Fingerprint{1, 2}, tenant: [16]byte{3}}
	someOffer = offerRequest{scope: someScope, keys: []profile.SegmentKey{{1}, {2}}}
	someReply = offer{prefill: cost.Prefill{Fixed: 5, PerToken: 0.07, PerTokenSquared: 1e-7}, held: []bool{true, false}, engines: []engineOffer{{7, 1.5, true}, {9, 0, false}}}
	someWork  = workRequest{scope: someScope, plan: 5, jobs: []jobRequest{
		{number: 2, engine: 7, micros: 1000, spec: profile.SegmentSpec{Role: profile.RoleMid, Head: 4, Tail: 4, Tokens: 3}, ids: []uint32{1, 2, 3}},
		{number: 4, engine: 7, micros: 1, spec: profile.SegmentSpec{Role: profile.RoleFirst, Tokens: 2}, begin: 1, holder: "node-b", ids: []uint32{5, 6}},
	}}
	somePoll    = resultsRequest{plan: 5, seen: 1, waitMs: 900, end: true, dropped: []uint32{2, 3}}
	someResults = []result{{2, done}, {4, late}}
)

// again is what a message encodes to once it was decoded; nil where it is not valid.
func again(kind uint8, b []byte) []byte {
	switch kind % 6 {
	case 0:
		if q, err := decodeOffer(b); err == nil {
			return q.append(nil)
		}
	case 1:
		if o, err := decodeOfferAnswer(b, 2); err == nil {
			return o.append(nil)
		}
	case 2:
		if q, err := decodeWork(b); err == nil {
			return q.append(nil)
		}
	case 3:
		if v, err := decodeVerdicts(b, 2); err == nil {
			return appendVerdicts(nil, v)
		}
	case 4:
		if q, err := decodeResults(b); err == nil {
			return q.append(nil)
		}
	case 5:
		if l, err := decodeResultsAnswer(b); err == nil {
			return appendResults(nil, l)
		}
	}
	return nil
}

func seeds() [][]byte {
	return [][]byte{
		someOffer.append(nil), someReply.append(nil), someWork.append(nil), appendVerdicts(nil, []verdict{taken, declined}),
		somePoll.append(nil), appendResults(nil, someResults),
	}
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for kind, b := range seeds() {
		if got := again(uint8(kind), b); !bytes.Equal(got, b) {
			t.Errorf("kind %d: %x, was %x", kind, got, b)
		}
		for n := range b {
			if again(uint8(kind), b[:n]) != nil {
				t.Errorf("kind %d: %d of %d bytes are a message", kind, n, len(b))
			}
		}
		if again(uint8(kind), append(bytes.Clone(b), 0)) != nil {
			t.Errorf("kind %d: one byte more is a message", kind)
		}
	}
}

// What is valid has one encoding, but for the microseconds of a queue, which are rounded;
// nothing takes more memory than its bytes.
func FuzzMessages(f *testing.F) {
	for kind, b := range seeds() {
		f.Add(uint8(kind), b)
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		got := again(kind, b)
		if got == nil {
			return
		}
		if kind%6 != 1 && !bytes.Equal(got, b) {
			t.Errorf("%x is encoded as %x", b, got)
		}
		if twice := again(kind, got); len(twice) != len(got) {
			t.Errorf("%x is encoded as %x", got, twice)
		}
	})
}
