package decided

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/daemon/note"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

type shelf struct{ content []byte }

func (s *shelf) Note(string) ([]byte, error) {
	if s.content == nil {
		return nil, fs.ErrNotExist
	}
	return s.content, nil
}

func (s *shelf) KeepNote(_ string, content []byte) error {
	s.content = bytes.Clone(content)
	return nil
}

var small = profiletest.New(profiletest.TwoLayers(1))

// memoryOf is the memory of a new start, which has read its note. Profile 3 is small.
func memoryOf(t testing.TB, s *shelf, tenant string) (*Memory, *decision.Log) {
	t.Helper()
	log := decision.NewLog(4096)
	known := func(id tier.ProfileID) (*profile.Profile, bool) { return small, id == 3 }
	m := NewMemory(log, note.Keeper{Disk: s}, known, tiering.Tenants{{ID: 1, Name: tenant}})
	if err := m.note.Load(); err != nil {
		t.Fatal(err)
	}
	return m, log
}

func evicted(i int) decision.Decision {
	return decision.Decision{
		At: time.Unix(int64(i), 0), What: decision.Evict, Why: decision.ForRoom, Name: tier.Name{Key: [32]byte{byte(i), byte(i >> 8), 1}},
		Profile: 3, Tenant: 1, Begin: i, End: i + 10, Value: 1.5, Bytes: 4096,
	}
}

func TestDecisionsAreKeptOverStarts(t *testing.T) {
	s := &shelf{}
	m, log := memoryOf(t, s, "a")
	if len(m.Before()) != 0 {
		t.Fatalf("%d before the first start", len(m.Before()))
	}
	log.Note(evicted(1))
	log.Note(decision.Decision{What: decision.AdviseAgainst, At: time.Now()})
	d := evicted(2)
	d.Profile, d.Name.Kind = 9, tier.Exact // no profile of that number
	log.Note(d)
	d.Value = math.Inf(1) // cannot be written
	log.Note(d)
	m.note.Save()

	m, log = memoryOf(t, s, "b")
	got := m.Before()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	want := Of(new(evicted(1)), tiering.Tenants{{ID: 1, Name: "a"}})
	first := got[1]
	if !first.At.Equal(want.At) || first.What != want.What || first.Why != want.Why || first.Object != "segment" || *first.Key != *want.Key || first.Tenant != "a" ||
		first.Begin != 1 || first.End != 11 || first.Value != 1.5 || first.Bytes != 4096 || first.Decision.Profile != 0 || profile.Fingerprint(first.Profile) != small.Fingerprint() {
		t.Errorf("%+v, want %+v", first, want)
	}
	if got[0].Object != "checkpoint" || got[0].Begin != 2 || got[0].Profile != [32]byte{} {
		t.Errorf("%+v", got[0])
	}
	log.Note(evicted(3))
	m.note.Save()

	m, _ = memoryOf(t, s, "c")
	told := ""
	for _, n := range m.Before() {
		told += fmt.Sprint(n.Begin, n.Tenant, " ")
	}
	if told != "3b 2a 1a " {
		t.Errorf("after three starts: %s", told)
	}
}

func TestTheNoteIsBounded(t *testing.T) {
	for _, tenant := range []string{"a", strings.Repeat("é", textMost/2), strings.Repeat("<", textMost)} {
		s := &shelf{}
		for start := range 2 {
			m, log := memoryOf(t, s, tenant)
			for i := range mostKept * 3 / 4 {
				log.Note(evicted(start*mostKept + i))
			}
			m.note.Save()
		}
		m, _ := memoryOf(t, s, tenant)
		got := m.Before()
		if newest := got[0].Begin; newest != mostKept+mostKept*3/4-1 {
			t.Errorf("the newest is %d", newest)
		}
		if n := len(got); n != mostKept && (n > mostKept || len(s.content) < noteMost-4096) {
			t.Errorf("%d kept in %d bytes", n, len(s.content))
		}
		if len(s.content) > noteMost {
			t.Errorf("%d bytes", len(s.content))
		}
		t.Logf("%d decisions in %d bytes", len(got), len(s.content))
	}
}

func TestADamagedNoteIsForgotten(t *testing.T) {
	s := &shelf{}
	m, log := memoryOf(t, s, "a")
	log.Note(evicted(1))
	log.Note(evicted(2))
	m.note.Save()
	good := string(s.content)
	with := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the note has no %s:\n%s", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	for _, content := range []string{
		"", "\x00\x00\x00", "null", "{}", "[]", "7", good[:len(good)/2], good[:len(good)-3], good + good, `{"version":1}`, `{"version":1,"decisions":null}`,
		`{"version":1,"decisions":{}}`, `{"version":1,"decisions":[null]}`, `{"version":1,"decisions":[{}]}`, `{"version":1,"decisions":[[]]}`,
		with(`"version":1`, `"version":2`), with(`"version":1`, `"version":1e99`), with(`"version":1`, `"version":"1"`),
		with(`"evicted"`, `"advised"`), with(`"evicted"`, `"unknown"`), with(`"evicted"`, `""`), with(`"segment"`, `"pool"`),
		with(`"begin":2`, `"begin":-2`), with(`"begin":2`, `"begin":99`), with(`"end":12`, `"end":9223372036854775807`), with(`"end":12`, `"end":1e400`),
		with(`"bytes":4096`, `"bytes":-1`), with(`"bytes":4096`, `"bytes":99999999999999999999`), with(`1.5`, `1e999`), with(`1.5`, `NaN`),
		with(`"tenant":"a"`, `"tenant":"\u001b[2J"`), with(`"tenant":"a"`, `"tenant":"`+strings.Repeat("a", textMost+1)+`"`), with(`"why":"`, `"why":"\n`),
		with(`"key":"02`, `"key":"zz`), with(`"profile":"`, `"profile":"0`), with(`"at":"1970`, `"at":"0000`[:6]+`99999`),
		`{"version":1,"decisions":` + strings.Repeat("[", 20000), strings.Repeat(" ", noteMost) + good,
	} {
		log := &bytes.Buffer{}
		m, of := NewMemory(decision.NewLog(16), note.Keeper{Disk: &shelf{[]byte(content)}, Log: zerolog.New(log)}, func(tier.ProfileID) (*profile.Profile, bool) { return nil, false }, nil), fmt.Sprintf("%.80q", content)
		if err := m.note.Load(); err != nil {
			t.Errorf("%s: %v", of, err)
		}
		if n := len(m.Before()); n != 0 || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), noteName) {
			t.Errorf("%s: %d decisions, told: %s", of, n, log)
		}
	}
}

// Whatever a file holds, what is taken of it is fit to be told and noted again.
func FuzzNote(f *testing.F) {
	s := &shelf{}
	m, log := memoryOf(f, s, "a")
	log.Note(evicted(1))
	m.note.Save()
	f.Add(s.content)
	f.Fuzz(func(t *testing.T, content []byte) {
		s := &shelf{content}
		m, _ := memoryOf(t, s, "a")
		n := len(m.Before())
		if _, err := json.Marshal(m.Before()); err != nil {
			t.Fatal(err)
		}
		m.note.Save()
		again, _ := memoryOf(t, s, "a")
		if got := len(again.Before()); got != n && len(s.content) < noteMost {
			t.Errorf("%d decisions, were %d", got, n)
		}
	})
}
