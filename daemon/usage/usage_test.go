package usage

import (
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/note"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
)

func whole(tokens uint32) *wire.ServedRequest {
	return &wire.ServedRequest{Way: wire.WayRecompute, Tokens: tokens, PrefixReason: wire.ReasonUnknown}
}

func tell(t *testing.T, u *Usage, of Key, m *wire.ServedRequest) uint64 {
	t.Helper()
	n, err := u.Served(Who{Key: of, Model: "m"}, m, Prediction{Prefill: cost.DefaultPrefill}, func(*wire.ServedRequest) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A process's own times do not decide its time saved while others have measured.
func TestTimeSavedIsByTheTimesOfOthers(t *testing.T) {
	u := New(time.Now, nil)
	serve := func(source uint64, m *wire.ServedRequest) *Request {
		t.Helper()
		n, err := u.Served(Who{Source: source}, m, Prediction{Prefill: cost.DefaultPrefill}, func(*wire.ServedRequest) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		r, _ := u.Request(n)
		return r
	}
	compute := func(source uint64, perToken uint32) {
		for i := range uint32(firstsLeast) {
			m := whole(500 + 100*i)
			m.FirstMicros = perToken * m.Tokens
			serve(source, m)
		}
	}
	reused := &wire.ServedRequest{Way: wire.WayPrefix, Tokens: 1000, Prefix: 1000, FirstMicros: 1000}
	if r := serve(1, reused); r.By != ByGuess {
		t.Errorf("by %v before anything was measured", r.By)
	}
	sums := func() Sums { return u.Rows()[0].Total() }
	guessed := sums().Guessed
	if saved := sums().Saved; guessed != saved || saved == 0 {
		t.Errorf("%v of %v ms saved is a guess", guessed, saved)
	}
	compute(1, 90_000)
	if r := serve(1, reused); r.By != ByOwn || r.By.String() != api.SavedByOwn || r.Saved < 80_000 {
		t.Errorf("alone: %v ms by %v", r.Saved, r.By)
	}
	compute(2, 1000)
	if r := serve(1, reused); r.By != ByFirst || r.Saved < 900 || r.Saved > 1100 {
		t.Errorf("beside another: %v ms by %v", r.Saved, r.By)
	}
	if got := sums().Guessed; got != guessed {
		t.Errorf("%v ms are a guess, were %v", got, guessed)
	}
}

func TestProfilesBeyondTheBoundShareARow(t *testing.T) {
	u := New(time.Now, nil)
	for i := range maxRows + 40 {
		tell(t, u, Key{1, profile.Fingerprint{1, byte(i >> 8), byte(i)}}, whole(10))
	}
	tell(t, u, Key{2, profile.Fingerprint{9}}, whole(10))
	rows := u.Rows()
	if len(rows) != maxRows+2 {
		t.Fatalf("%d rows", len(rows))
	}
	if rest := rows[0].Total(); rows[0].Fingerprint != (profile.Fingerprint{}) || rest.Requests() != 40 || rest.Prompt != 400 {
		t.Fatalf("%+v", rows[0])
	}
}

func TestKeptRequestsAreBoundedInBytes(t *testing.T) {
	u := New(time.Now, nil)
	m := whole(2 * 1000)
	for i := range uint32(1000) {
		m.Begins, m.Counts, m.At, m.Reused = append(m.Begins, 2*i), append(m.Counts, 1), append(m.At, 0), append(m.Reused, 0)
		m.Tiers, m.Reasons, m.Keys = append(m.Tiers, 0), append(m.Reasons, wire.ReasonEvicted), append(m.Keys, [32]byte{1})
	}
	var last uint64
	for range 500 {
		last = tell(t, u, Key{}, m)
	}
	kept := u.Last(1000, func(*Request) bool { return true })
	if u.mu.rings.bytes > ringBytes || len(kept) == 0 || len(kept) >= 500 || kept[0].Number != last {
		t.Fatalf("%d bytes, %d requests", u.mu.rings.bytes, len(kept))
	}
	bytes := 0
	for i, r := range kept {
		if bytes += sizeOf(r); r.Number != last-uint64(i) {
			t.Fatalf("request %d at %d", r.Number, i)
		}
		if again, ok := u.Request(r.Number); !ok || again != r {
			t.Fatalf("request %d is not found", r.Number)
		}
	}
	if bytes != u.mu.rings.bytes {
		t.Fatalf("%d bytes counted, %d kept", u.mu.rings.bytes, bytes)
	}
	if _, ok := u.Request(kept[len(kept)-1].Number - 1); ok {
		t.Fatal("a request that has left is found")
	}
}

// notes is a directory with one note.
type notes struct{ content []byte }

func (n *notes) Note(string) ([]byte, error) {
	if n.content == nil {
		return nil, fs.ErrNotExist
	}
	return n.content, nil
}

func (n *notes) KeepNote(_ string, content []byte) error {
	n.content = content
	return nil
}

func TestWhatCannotBeReadBeginsAnew(t *testing.T) {
	tenants := []tiering.Tenant{{ID: 7, Name: "a"}}
	good := &notes{}
	u := New(time.Now, nil)
	tell(t, u, Key{7, profile.Fingerprint{3}}, whole(10))
	NewMemory(u, note.Keeper{Disk: good}, tenants).note.Save()
	for content, want := range map[string]uint64{
		string(good.content):              1,
		string(good.content[:20]):         0,
		`[{"tenant":"a"}]`:                0,
		`[{"tenant":"a","profile":"zz"}]`: 0,
		`[{"tenant":"a","profile":"` + rep("00") + `","model":"m","ways":[0,1,0,0,0],"prompt_tokens":5,"tokens":{"computed":4},"missed":{"new":4}}]`: 0,
	} {
		u := New(time.Now, nil)
		if err := NewMemory(u, note.Keeper{Disk: &notes{content: []byte(content)}}, tenants).note.Load(); err != nil {
			t.Fatal(err)
		}
		got := uint64(0)
		for _, r := range u.Rows() {
			total := r.Total()
			got += total.Requests()
		}
		if got != want {
			t.Errorf("%.60s: %d requests, want %d", content, got, want)
		}
	}
}

func rep(s string) (all string) {
	for range 32 {
		all += s
	}
	return all
}

func TestSumsOfTenantsThatAreNotConfiguredStay(t *testing.T) {
	n := &notes{}
	u := New(time.Now, nil)
	tell(t, u, Key{7, profile.Fingerprint{3}}, whole(10))
	NewMemory(u, note.Keeper{Disk: n}, []tiering.Tenant{{ID: 7, Name: "a"}}).note.Save()
	other := NewMemory(New(time.Now, nil), note.Keeper{Disk: n}, []tiering.Tenant{{ID: 7, Name: "b"}})
	if err := other.note.Load(); err != nil || len(other.usage.Rows()) != 0 {
		t.Fatal(err, other.usage.Rows())
	}
	other.note.Save()
	again := NewMemory(New(time.Now, nil), note.Keeper{Disk: n}, []tiering.Tenant{{ID: 9, Name: "a"}})
	if err := again.note.Load(); err != nil {
		t.Fatal(err)
	}
	if rows := again.usage.Rows(); len(rows) != 1 || rows[0].Tenant != 9 || rows[0].Before.Prompt != 10 {
		t.Fatalf("%+v", rows)
	}
}

func TestHistoryOfAWeek(t *testing.T) {
	var now Sample
	h := NewHistory(func() Sample { return now })
	start := time.Unix(1_000_000, 0)
	const steps = 8 * 24 * 360 // eight days
	for i := 1; i <= steps+7; i++ {
		now.At, now.Requests, now.Prompt = start.Add(time.Duration(i)*FineStep), uint64(i), 3*uint64(i)
		now.Bytes[2] = int64(i)
		h.step()
	}
	fine, coarse := h.Fine(24*time.Hour), h.Coarse()
	if len(fine) != fineSteps || len(coarse) != coarseMost+1 {
		t.Fatalf("%d fine and %d coarse steps", len(fine), len(coarse))
	}
	for i := range fine {
		if s := &fine[i]; s.Requests != 1 || s.Prompt != 3 || !s.At.Equal(now.At.Add(-time.Duration(fineSteps-1-i)*FineStep)) || s.Bytes[2] != int64(steps+7-(fineSteps-1-i)) {
			t.Fatalf("step %d: %+v", i, s)
		}
	}
	if few := h.Fine(time.Minute); !slices.Equal(few, fine[fineSteps-6:]) {
		t.Fatalf("the last minute: %+v", few)
	}
	for i := range coarse[:coarseMost] {
		if s := &coarse[i]; s.Requests != uint64(perCoarse) || s.At.Sub(start)%CoarseStep != 0 {
			t.Fatalf("step %d: %+v", i, s)
		}
	}
	if open := coarse[coarseMost]; open.Requests != 7 {
		t.Fatalf("open step: %+v", open)
	}
}
