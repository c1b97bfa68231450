package tiering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// lastDecisions is up to n of them, the newest first.
func (b *bench) lastDecisions(n int) (list []decision.Decision) {
	for d := range b.Decisions().Last() {
		if len(list) == n {
			break
		}
		list = append(list, *d)
	}
	return list
}

// told is the newest decisions in words, oldest first.
func (b *bench) told(n int) string {
	var lines []string
	for _, d := range b.lastDecisions(n) {
		lines = append([]string{fmt.Sprintf("%v %x [%d, %d) %d bytes: %v", d.What, d.Name.Key[1], d.Begin, d.End, d.Bytes, d.Why)}, lines...)
	}
	return strings.Join(lines, "\n")
}

func (b *bench) wantTold(lines ...string) {
	b.Helper()
	if got, want := b.told(len(lines)), strings.Join(lines, "\n"); got != want {
		b.Fatalf("decided:\n%s\nwant:\n%s", got, want)
	}
}

func TestDecisionsSayWhyNodesComeAndGo(t *testing.T) {
	b := newBench(t, stateful(1), func(c *Config) { c.PrivateBytes = 180 << 10 })
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 32, 16, tier.Exact), 16)
	b.save(c, b.saveQuery(2, 16, 0, tier.Exact), 0)
	b.wantTold(
		"admitted 1 [0, 16) 57344 bytes: filled by its writer",
		"admitted 1 [16, 32) 57344 bytes: filled by its writer",
		"admitted 2 [0, 16) 57344 bytes: filled by its writer",
	)
	if b.cat.Objects.Pools[objects.PrivatePool].FloorValue() != 0 {
		t.Error("a floor before anything had to leave")
	}
	b.save(c, b.saveQuery(3, 16, 0, tier.Exact), 0)
	b.wantTold(
		"thinned 1 [0, 16) 45056 bytes: for room in its pool",
		"admitted 3 [0, 16) 57344 bytes: filled by its writer",
	)
	b.save(c, b.saveQuery(4, 16, 0, tier.Exact), 0)
	b.wantTold(
		"evicted 1 [0, 32) 57344 bytes: for room in its pool", // the tokens of both are gone with it
		"dropped 1 [0, 16) 12288 bytes: thinned, and nothing extends it any more",
		"admitted 4 [0, 16) 57344 bytes: filled by its writer",
	)
	if b.cat.Objects.Pools[objects.PrivatePool].FloorValue() <= 0 {
		t.Error("no floor after an eviction for room")
	}
	b.wantUsed(0, 3*57344)
	if n := b.Counters().StrippedDropped; n != 1 {
		t.Errorf("%d thinned nodes are counted as dropped, want 1", n)
	}
	_, err := c.Save(b.saveQuery(5, 5000, 0, tier.Exact))
	b.wantErr(err, tier.ErrFull)
	if d := b.lastDecisions(1)[0]; d.What != decision.Refuse || d.Why != decision.NoRoom || d.End != 5000 {
		t.Errorf("%v of %d tokens, %v; want one of 5000 refused for want of room", d.What, d.End, d.Why)
	}
}

// Who listens hears what an object had to leave for, which lists leave out, and from where
// one came.
func TestWhoListensHearsOfRivals(t *testing.T) {
	var heard []decision.Decision
	b := newBench(t, stateful(1), func(c *Config) {
		c.PrivateBytes = 120 << 10
		c.Decided = func(d decision.Decision) { heard = append(heard, d) }
	})
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(2, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(3, 16, 0, tier.Exact), 0)
	var words []string
	for _, d := range heard {
		words = append(words, fmt.Sprintf("%v %x by %s from %d for %x", d.What, d.Name.Key[1], d.Client, d.From, d.Rival.Name.Key[1]))
		if (d.What == decision.Evict) != (d.Rival.Value > 0) || d.Model == "" {
			t.Errorf("%+v", d)
		}
	}
	want := "admitted 1 by c from 0 for 0; admitted 2 by c from 0 for 0; evicted 1 by c from 0 for 3; admitted 3 by c from 0 for 0"
	if got := strings.Join(words, "; "); got != want {
		t.Errorf("heard:\n%s\nwant:\n%s", got, want)
	}
}
