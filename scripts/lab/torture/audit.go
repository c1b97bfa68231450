package torture

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// cache is the audited cache: a daemon, or a store in this process.
type cache interface {
	// found returns which items a lookup finds.
	found(ctx context.Context, items []*item) ([]bool, error)
	// read passes the bytes of an item to the function see, in runs that begin at multiples of 8.
	// It returns false if the item is absent.
	read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error)
	// list returns the names of all objects.
	list(ctx context.Context) ([]tier.Name, error)
}

// reader is the part of a cache that serves bytes.
type reader interface {
	read(ctx context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error)
}

// Findings are the faults that audits and reads found, and how much they checked.
type Findings struct {
	Corrupt int      `json:"corrupt"` // reads that returned other bytes than the submitted ones
	Phantom int      `json:"phantom"` // names listed or served that were never submitted
	Looked  int      `json:"looked_up"`
	Read    int      `json:"read_back"`
	Again   int      `json:"read_back_synced"` // reads by audits of items acknowledged as synced
	Bytes   int64    `json:"read_back_bytes"`
	Notes   []string `json:"notes,omitempty"` // the first few faults
}

// maxNotes bounds Findings.Notes.
const maxNotes = 20

func (f *Findings) note(format string, a ...any) {
	if len(f.Notes) < maxNotes {
		f.Notes = append(f.Notes, fmt.Sprintf(format, a...))
	}
}

func (f *Findings) add(o Findings) {
	f.Corrupt += o.Corrupt
	f.Phantom += o.Phantom
	f.Looked += o.Looked
	f.Read += o.Read
	f.Again += o.Again
	f.Bytes += o.Bytes
	f.Notes = append(f.Notes, o.Notes[:min(len(o.Notes), maxNotes-len(f.Notes))]...)
}

// check reads an item and compares the bytes with those submitted.
func (f *Findings) check(ctx context.Context, c reader, i *item) (intact bool, err error) {
	wrong, seen := "", int64(0)
	there, err := c.read(ctx, i, func(rank, part int, off int64, b []byte) {
		seen += int64(len(b))
		if wrong == "" && !i.content(rank, part).holds(b, off) {
			wrong = fmt.Sprintf("rank %d, part %d, within the %d bytes at %d", rank, part, len(b), off)
		}
	})
	if err != nil || !there {
		return false, err
	}
	want := int64(0)
	for _, p := range i.layout.Parts {
		want += p.Len * int64(i.shape.ranks())
	}
	if wrong == "" && seen != want {
		wrong = fmt.Sprintf("%d bytes, want %d", seen, want)
	}
	f.Read++
	f.Bytes += seen
	if wrong != "" {
		f.Corrupt++
		f.note("%s is not what was submitted: %s", i, wrong)
	}
	return wrong == "", nil
}

// audit checks everything that was ever submitted.
type audit struct {
	ledger    *ledger
	cache     cache
	rng       *rand.Rand
	older     int64      // bytes of items of earlier rounds to read back; other items are only looked up. Negative = read all
	first     int        // added to the ledger's round numbers in notes
	must      tier.Level // lost items that were acknowledged at this level or above get a note
	strangers []*item    // never submitted
}

// run checks all records. It reads back all items of the round that just ended, and a random
// sample of the items of earlier rounds.
func (a *audit) run(ctx context.Context) (f Findings, err error) {
	if err := a.names(ctx, &f); err != nil {
		return f, err
	}
	records := a.ledger.sift(func(*record) bool { return true })
	items := make([]*item, len(records))
	for i, r := range records {
		items[i] = r.item
	}
	found, err := a.cache.found(ctx, items)
	if err != nil {
		return f, fmt.Errorf("look up %d items: %w", len(items), err)
	}
	f.Looked += len(items)
	left := a.older
	for _, i := range a.rng.Perm(len(records)) { // random order, so that old and new items are in memory together
		r, intact := records[i], found[i]
		whole := r.round == a.ledger.round || a.older < 0
		if intact && (whole || left > 0) {
			if intact, err = f.check(ctx, a.cache, r.item); err != nil {
				return f, fmt.Errorf("read %s: %w", r.item, err)
			}
			if !whole {
				left -= r.item.bytes()
			}
			if intact && r.acked == tier.LevelSynced {
				f.Again++
			}
		}
		if !intact && r.acked >= a.must && r.acked != 0 && !r.removed && !r.missing {
			f.note("%s of %d bytes, acknowledged as %s in round %d, is lost", r.item, r.item.bytes(), levelText(r.acked), r.round+a.first)
		}
		a.ledger.audited(r, intact)
	}
	return f, nil
}

// names finds objects that were never submitted.
func (a *audit) names(ctx context.Context, f *Findings) error {
	listed, err := a.cache.list(ctx)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	for _, n := range listed {
		if !a.ledger.submitted(n) {
			f.Phantom++
			f.note("listed, but never submitted: %x of kind %d", n.Key, n.Kind)
		}
	}
	served, err := a.cache.found(ctx, a.strangers)
	if err != nil {
		return fmt.Errorf("look up what was never submitted: %w", err)
	}
	for i, hit := range served {
		if hit {
			f.Phantom++
			f.note("served, but never submitted: %s", a.strangers[i])
		}
	}
	return nil
}
