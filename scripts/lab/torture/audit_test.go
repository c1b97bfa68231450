package torture

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func tallies(memory, logged, synced Tally) Tallies { return Tallies{memory, logged, synced} }

func TestWhatIsThereHasSurvived(t *testing.T) {
	b := newBench(t, 1)
	b.ledger.begin()
	for n, l := range []tier.Level{0, 1, 2, 3, 1, 2, 3} {
		b.put(uint64(n), l)
	}
	f := b.audit(0)
	if want := tallies(Tally{2, 2}, Tally{2, 2}, Tally{2, 2}); b.ledger.current() != want {
		t.Errorf("%+v", b.ledger.current())
	}
	if f.Corrupt != 0 || f.Phantom != 0 || f.Read != 7 || f.Looked != 7 || f.Notes != nil {
		t.Errorf("%+v", f)
	}
}

func TestEveryKindOfDamageIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		damage           func(b *bench, i *item)
		corrupt, phantom int
		survived         int
		note             bool
	}{
		"gone":            {func(b *bench, i *item) { delete(b.fake.held, i.Name) }, 0, 0, 1, true},
		"one bit":         {func(b *bench, i *item) { b.fake.wrong[i.Name] = true }, 1, 0, 1, true},
		"short":           {func(b *bench, i *item) { b.fake.short[i.Name] = true }, 1, 0, 1, true},
		"of another item": {func(b *bench, i *item) { b.fake.listed = []tier.Name{{Key: [32]byte{9}}} }, 0, 1, 2, true},
		"of another kind": {func(b *bench, i *item) { b.fake.listed = []tier.Name{{Kind: 1, Key: i.Key}} }, 0, 1, 2, true},
		"all hits":        {func(b *bench, i *item) { b.fake.hits = true }, 0, 8, 2, true},
		"nothing":         {func(b *bench, i *item) {}, 0, 0, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1)
			b.ledger.begin()
			b.put(1, tier.LevelSynced)
			c.damage(b, b.put(2, tier.LevelSynced))
			f := b.audit(0)
			if f.Corrupt != c.corrupt || f.Phantom != c.phantom || (f.Notes != nil) != c.note {
				t.Errorf("%+v", f)
			}
			if got := b.ledger.current().Synced; got != (Tally{2, c.survived}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A wrong byte counts wherever it lies, also in what had no reply.
func TestUnacknowledgedBytesMustBeRightToo(t *testing.T) {
	b := newBench(t, 1)
	b.ledger.begin()
	b.fake.wrong[b.put(1, 0).Name] = true
	if f := b.audit(0); f.Corrupt != 1 {
		t.Errorf("%+v", f)
	}
	delete(b.fake.held, b.put(2, 0).Name)
	if f := b.audit(0); f.Corrupt != 1 || len(f.Notes) != 1 {
		t.Errorf("%+v", f)
	}
	if got := b.ledger.current(); got != (Tallies{}) {
		t.Errorf("%+v", got)
	}
}

// What survived one crash has to survive the next ones as well.
func TestALaterLossCountsAgainstItsRound(t *testing.T) {
	b := newBench(t, 1)
	b.ledger.begin()
	first, second := b.put(1, tier.LevelSynced), b.put(2, tier.LevelLogged)
	b.audit(0)
	b.ledger.begin()
	b.put(3, tier.LevelSynced)
	delete(b.fake.held, first.Name)
	f := b.audit(0)
	if want := tallies(Tally{}, Tally{1, 1}, Tally{2, 1}); b.ledger.totals() != want || len(f.Notes) != 1 {
		t.Errorf("%+v, %+v", b.ledger.totals(), f)
	}
	b.audit(0) // it is not lost twice
	if want := tallies(Tally{}, Tally{1, 1}, Tally{2, 1}); b.ledger.totals() != want {
		t.Errorf("%+v", b.ledger.totals())
	}
	if f.Read != 1 {
		t.Errorf("read %d back of earlier and this round, want that of this round", f.Read)
	}
	b.fake.wrong[second.Name] = true
	if f := b.audit(-1); f.Corrupt != 1 || f.Read != 2 {
		t.Errorf("the last audit reads all: %+v", f)
	}
	if b.ledger.totals().Logged != (Tally{1, 0}) {
		t.Errorf("%+v", b.ledger.totals())
	}
}

// Removed on purpose is not lost, and what is submitted again counts again.
func TestRemovedAndSubmittedAgain(t *testing.T) {
	b := newBench(t, 1)
	b.ledger.begin()
	i := b.put(1, tier.LevelSynced)
	b.audit(0)
	b.ledger.begin()
	b.ledger.remove(i)
	delete(b.fake.held, i.Name)
	if f := b.audit(0); f.Notes != nil || b.ledger.totals().Synced != (Tally{1, 1}) {
		t.Errorf("%+v, %+v", f, b.ledger.totals())
	}
	b.ledger.begin()
	b.put(1, tier.LevelSynced)
	delete(b.fake.held, i.Name)
	if b.audit(0); b.ledger.totals().Synced != (Tally{2, 1}) {
		t.Errorf("%+v", b.ledger.totals())
	}
}

// A reply that arrives when the power may be gone already proves nothing.
func TestClosedRoundTakesNoAcknowledgements(t *testing.T) {
	b := newBench(t, 1)
	b.ledger.begin()
	i := b.put(1, 0)
	b.ledger.close()
	if err := b.ledger.acknowledge(i, tier.LevelSynced); err != nil || b.ledger.current() != (Tallies{}) {
		t.Errorf("%v, %+v", err, b.ledger.current())
	}
	b.ledger.begin()
	if err := b.ledger.acknowledge(i, tier.LevelSynced); err == nil {
		t.Error("acknowledged in a round in which it was not submitted")
	}
}
