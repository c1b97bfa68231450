package peer

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// descriptionOf is what a store would say of an object.
func descriptionOf(o *tiertest.Object) *description {
	return &description{
		Name: o.Name, spec: o.Spec, begin: o.Begin, end: o.End, parent: o.Parent, rankBytes: int64(len(o.Bytes[0])),
		publisher: "somebody", tokens: o.Tokens, digests: o.Digests, packed: o.Packed,
	}
}

func described() []*tiertest.Object {
	root := tiertest.Checkpoint(tiertest.Pair, loneTenant[0], 1, tier.Exact, nil, 20)
	return []*tiertest.Object{
		tiertest.Segment(tiertest.Small, loneTenant[0], 1, 40), tiertest.Middle(tiertest.Pair, loneTenant[0], 2, 100),
		tiertest.Primed(tiertest.Pair, loneTenant[0], 6, 100), tiertest.Primed(tiertest.Lenient, loneTenant[0], 7, 100),
		tiertest.Segment(tiertest.WideF32, loneTenant[0], 3, 900), tiertest.Segment(tiertest.Lenient, loneTenant[0], 5, 40), root, tiertest.Checkpoint(tiertest.Pair, loneTenant[0], 4, tier.Spliced, root, 7),
	}
}

func nameOf(o *tiertest.Object) name {
	return name{Name: o.Name, fingerprint: o.Profile.Fingerprint(), tenant: tenantTag{1, 2, 3}}
}

func TestMessagesAreReadAsTheyWereWritten(t *testing.T) {
	var names []name
	out := binary.LittleEndian.AppendUint16(nil, uint16(len(described())))
	for i, o := range described() {
		names = append(names, nameOf(o))
		d := descriptionOf(o)
		b := d.append(nil)
		if len(b) != d.size() {
			t.Errorf("%v: %d bytes, size says %d", o, len(b), d.size())
		}
		got, err := decodeDescription(b)
		if err != nil || !bytes.Equal(got.append(nil), b) || pinOf(got) != pinOf(d) {
			t.Errorf("%v: %+v, %v", o, got, err)
		}
		if _, err := got.fits(o.Profile, &o.Name); err != nil {
			t.Errorf("%v: %v", o, err)
		}
		out = appendRow(out, status(i%int(statuses)), d)
	}
	got, err := decodeFind(appendFind(nil, names))
	if err != nil || !slices.Equal(got, names) {
		t.Errorf("find: %v, %v", got, err)
	}
	rows, err := decodeAnswer(out, len(names))
	noError(t, err)
	for i, r := range rows {
		if r.status != status(i%int(statuses)) || (r.status == here) != (r.description != nil) {
			t.Errorf("row %d: %+v", i, r)
		}
	}
	q := readRequest{name: names[0], pin: pin{7}, rank: 3, off: 1 << 40, n: maxRange}
	if got, err := decodeRead(q.append(nil)); err != nil || got != q {
		t.Errorf("read: %+v, %v", got, err)
	}
}

// A description without a primer has the bytes of an earlier release; one with a primer has a role
// that every earlier release refuses.
func TestDescriptionsWithAPrimerAreRefusedByAnEarlierRelease(t *testing.T) {
	o := tiertest.Middle(tiertest.Pair, loneTenant[0], 2, 100)
	plain := descriptionOf(o).append(nil)
	d := descriptionOf(o)
	d.spec.Primer[0] = 1
	primed := d.append(nil)
	const at = 1 + 32
	if plain[at] != byte(o.Spec.Role) || primed[at] != byte(o.Spec.Role)|1<<7 {
		t.Errorf("roles %d and %d", plain[at], primed[at])
	}
	if want := append(bytes.Clone(plain), d.spec.Primer[:]...); !bytes.Equal(append(append(bytes.Clone(primed[:at]), plain[at]), primed[at+1:]...), want) {
		t.Errorf("the primer does not follow what an earlier release describes")
	}
	d.spec.Primer[0] = 0
	zeros := append(append(bytes.Clone(plain[:at]), primed[at]), plain[at+1:]...)
	if _, err := decodeDescription(append(zeros, make([]byte, 32)...)); err == nil {
		t.Error("a primer of zeros is read")
	}
}

// Each byte of a description is either of no consequence to bytes (the publisher) or
// changes the pin, is refused, or is told from the token ids' key.
func TestAChangedDescriptionIsNotTheSame(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, o := range described() {
		d := descriptionOf(o)
		b := d.append(nil)
		for range 300 {
			i := rng.IntN(len(b))
			b[i] ^= 1 << rng.IntN(8)
			got, err := decodeDescription(b)
			b[i] = d.append(nil)[i]
			if err != nil || got.publisher != d.publisher {
				continue
			}
			if _, err := got.fits(o.Profile, &o.Name); err != nil {
				continue
			}
			sameTokens := o.Kind != 0 || o.Profile.SegmentKey(o.Tenant.Salt, got.spec, got.tokens) == o.Key
			if sameTokens && pinOf(got) == pinOf(d) {
				t.Errorf("%v: byte %d was changed unnoticed", o, i)
			}
		}
	}
}

func FuzzDescription(f *testing.F) {
	list := described()
	for _, o := range list {
		f.Add(descriptionOf(o).append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDescription(b)
		if err != nil {
			return
		}
		again, err := decodeDescription(d.append(nil))
		if err != nil || pinOf(again) != pinOf(d) || !slices.Equal(again.tokens, d.tokens) {
			t.Fatalf("%+v became %+v, %v", d, again, err)
		}
		for _, o := range list {
			if l, err := d.fits(o.Profile, &d.Name); err == nil {
				spansOf(&l, d.digests, 1<<20)
			}
		}
	})
}

func FuzzAnswer(f *testing.F) {
	out := binary.LittleEndian.AppendUint16(nil, 2)
	out = appendRow(appendRow(out, here, descriptionOf(described()[0])), later, nil)
	f.Add(out)
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, err := decodeAnswer(b, 2)
		if err != nil {
			return
		}
		if len(rows) != 2 {
			t.Fatalf("%d rows", len(rows))
		}
	})
}

// FuzzServer sends bodies to a server over an empty store: whatever they are, it answers.
func FuzzServer(f *testing.F) {
	s := open(f, loneTenant, options{})
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Error(err)
		}
	})
	n := nameOf(described()[0])
	n.tenant = s.names.tags[loneTenant[0].ID]
	f.Add(FindPath, appendFind(nil, []name{n, n}))
	f.Add(ReadPath, (&readRequest{name: n, n: 1}).append(nil))
	f.Add("/", []byte{})
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		var ctx fasthttp.RequestCtx
		var q fasthttp.Request
		q.Header.SetMethod("POST")
		q.SetRequestURI(path)
		q.SetBody(body)
		ctx.Init(&q, nil, nil)
		s.sources[0].server.Handler(&ctx)
		switch code := ctx.Response.StatusCode(); code {
		case fasthttp.StatusOK, fasthttp.StatusBadRequest, fasthttp.StatusNotFound, fasthttp.StatusNotImplemented:
		default:
			t.Errorf("status %d: %s", code, ctx.Response.Body())
		}
		if leases, _ := s.sources[0].server.session.Holdings(); leases > 0 {
			t.Errorf("%d leases are held", leases)
		}
	})
}
