package disk

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// phase is where an entry stands. table.become is the one place where it changes.
//
//	                  on its way, counted                       found
//	admitted ► starting ► queued ► writing ► written ► committing ──► logged ◄──► synced
//	   │          └──────────┴────────┴─────────┴──────────┘ │           ▲  │        │
//	   │                     │ forgotten                     │       read│  │forgotten
//	   │                  dropped ──── a row was, or may ────┼──► ─┐ suspect│        │
//	   │                     │         have been, written    │     │     │  │        │
//	   │                     │ ended                         │     ▼     ▼  ▼        ▼
//	   └─ canceled ─► gone ◄─┴─────────────────── released ◄─── deleted ◄─ deleting ◄┘
//	                           nobody reads it           synced       row deleted
//
// Opening the directory begins entries as logged or suspect, or as dormant where the
// file of their profile does not give it: these are counted and may be evicted, and are
// not found before the profile is known. Closing it forgets all of them at once, with
// their pools.
type phase uint8

const (
	admitted   phase = iota // counted, and not started yet
	starting                // Start makes the rest of its room
	queued                  // waits for a worker
	writing                 // a worker has it
	written                 // its bytes are in slabs, its row is not in the catalogue
	committing              // its row is being written
	dormant                 // its row is good, its profile is not known yet
	suspect                 // live: from before the directory was opened, and its bytes may not have been synced
	logged                  // live
	synced                  // live
	dropped                 // forgotten on its way: whoever has it ends it
	deleting                // forgotten: its row is to be deleted
	deleted                 // its row is deleted, and that is not synced
	released                // that is synced: its space is free once nobody reads it
	gone                    // its space is free
	phases
)

var phaseNames = [phases]string{
	"admitted", "starting", "queued", "writing", "written", "committing", "dormant", "suspect", "logged", "synced",
	"dropped", "deleting", "deleted", "released", "gone",
}

func (p phase) String() string { return phaseNames[p] }

func (p phase) pending() bool { return p <= committing }
func (p phase) kept() bool    { return p >= dormant && p <= synced } // by a row
func (p phase) live() bool    { return p >= suspect && p <= synced }

// mayBecome are the arrows of the picture. What is on its way is gone once the
// directory is closed.
var mayBecome = [phases][]phase{
	admitted:   {starting, gone},
	starting:   {queued, dropped, gone},
	queued:     {writing, dropped, gone},
	writing:    {written, dropped, gone},
	written:    {committing, dropped, gone},
	committing: {logged, dropped, gone},
	dormant:    {suspect, logged, deleting},
	suspect:    {logged, deleting},
	logged:     {synced, deleting},
	synced:     {deleting},
	dropped:    {deleting, gone},
	deleting:   {deleted},
	deleted:    {released},
	released:   {gone},
}

// level is how safe an entry is.
func (p phase) level() tier.Level {
	switch p {
	case logged:
		return tier.LevelLogged
	case synced:
		return tier.LevelSynced
	}
	return tier.LevelMemory
}

// entry is an object on disk, or on its way there. The row, model, account and pool
// are fixed, apart from where it lies: that is known once it is written. The rest is
// guarded by the tier's lock.
type entry struct {
	catalog.Row
	model *model
	owner *account
	pool  *pool

	phase    phase
	id       policy.ID
	bytes    int64 // counted: of its runs, or while it is on its way what it may need; HeaderBytes likewise
	used     time.Time
	usedNews bool   // used is not in the catalogue yet
	evicts   bool   // it may be evicted: policies hold it
	readers  int    // reads of it
	pins     int    // 1 while it is on its way or read, and 1 for each child with pins
	public   bool   // the set of what is held, and the index of segments, have it
	failures int    // mount.failures when its bytes were written
	proven   bool   // its seal was compared, or made, since the directory was opened
	write    *write // while it is on its way

	parent      *entry
	child       *entry // any one
	children    int
	older, next *entry // siblings, both ways
}

// become changes an entry's phase.
func (t *table) become(e *entry, to phase) {
	if !slices.Contains(mayBecome[e.phase], to) {
		panic(fmt.Sprintf("disk: %v is %v and cannot become %v", e.Name, e.phase, to))
	}
	if e.phase == dormant {
		e.model.dormant--
	}
	e.phase = to
	t.publish(e, to.live())
	switch to {
	case logged:
		t.logged = append(t.logged, e)
	case deleting:
		t.deleting = append(t.deleting, e)
	}
}

// view is what the store gets to know.
func (e *entry) view() tier.Entry {
	return tier.Entry{
		Name: e.name(), Fingerprint: e.Fingerprint, Tenant: e.owner.ID, Spec: e.Spec, Packed: e.Packed, Begin: e.Begin, End: e.End,
		Parent: tierName(e.Parent), Children: e.children, Bytes: e.charge(), Level: e.phase.level(), Generation: e.Generation,
	}
}

// charge is what its tenant pays for: its runs, and the header once more, for its rows in
// the catalogue. These hold what the header does, the manifest with its token ids and
// digests above all. At 8 KiB or more it is also several times what the heap has of it.
func (e *entry) charge() int64 { return e.bytes + int64(e.HeaderBytes) }

// forgotten: the entry is neither on its way nor found any more.
func (e *entry) forgotten() bool { return e.phase >= dropped || e.pool.closed }

func (e *entry) name() tier.Name { return tierName(e.Name) }

func extentName(n tier.Name) extent.Name { return extent.Name{Kind: uint8(n.Kind), Key: n.Key} }

func tierName(n extent.Name) tier.Name {
	return tier.Name{Kind: tier.CheckpointKind(n.Kind), Key: n.Key}
}

func (e *entry) tokens() int {
	if e.Kind == 0 {
		return e.End - e.Begin
	}
	return e.End
}

// join makes e a child of up.
func (e *entry) join(up *entry) {
	e.parent, e.next = up, up.child
	if up.child != nil {
		up.child.older = e
	}
	up.child = e
	up.children++
}

// leave takes e from its parent.
func (e *entry) leave() {
	if e.parent == nil {
		return
	}
	e.parent.children--
	if e.older != nil {
		e.older.next = e.next
	} else {
		e.parent.child = e.next
	}
	if e.next != nil {
		e.next.older = e.older
	}
	e.parent, e.older, e.next = nil, nil, nil
}
