package parallel

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
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
	primedOffer = offerRequest{scope: someScope, keys: []profile.SegmentKey{{1}, {2}}, primers: []profile.PrimerID{{8}, {9}}}
	primedWork  = workRequest{scope: someScope, plan: 5, jobs: []jobRequest{
		{number: 1, engine: 7, spec: profile.SegmentSpec{Role: profile.RoleMid, Tokens: 1, Primer: profile.PrimerID{8}}, ids: []uint32{1}},
		{number: 2, engine: 7, spec: profile.SegmentSpec{Role: profile.RoleMid, Tokens: 1}, ids: []uint32{1}},
		{number: 3, engine: 7, spec: profile.SegmentSpec{Role: profile.RoleMid, Tokens: 2, Primer: profile.PrimerID{9}}, begin: 1, ids: []uint32{1, 2}},
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
		primedOffer.append(nil), nil, primedWork.append(nil), // kinds 6 and 8 are 0 and 2 again
	}
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for kind, b := range seeds() {
		if b == nil {
			continue
		}
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

// Nodes that know of no primers read the messages without them as ever, and refuse the others.
func TestMessagesWithoutPrimersAreThoseOfAnEarlierRelease(t *testing.T) {
	plain := seeds()
	for kind, want := range map[int]string{
		0: "010200000000000000000000000000000000000000000000000000000000000003000000000000000000000000000000020001000000000000000000000000000000000000000000000000000000000000000200000000000000000000000000000000000000000000000000000000000000",
		2: "01020000000000000000000000000000000000000000000000000000000000000300000000000000000000000000000005000000000000000200020000000700000000000000e80300000204000000040000000000000000030000000100000002000000030000000400000007000000000000000100000001000000000000000001000000066e6f64652d62020000000500000006000000",
	} {
		if got := hex.EncodeToString(plain[kind]); got != want {
			t.Errorf("kind %d: %s, was %s", kind, got, want)
		}
	}
	if count := binary.LittleEndian.Uint16(primedOffer.append(nil)[scopeBytes:]); count <= MaxRows {
		t.Errorf("an offer with primers has %d keys, which an earlier release reads", count)
	}
	at := scopeBytes + 8 + 2 + 4 + 8 + 4
	if role := profile.Role(primedWork.append(nil)[at]); role == profile.RoleFirst || role == profile.RoleMid {
		t.Errorf("a job with a primer has role %d, which an earlier release reads", role)
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
