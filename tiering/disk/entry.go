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

// phase is a stage in the life of an entry. Only table.become changes it.
//
//	                  on its way, counted                       found
//	admitted ► starting ► queued ► writing ► written ► committing ──► logged ◄──► synced
//	   │          └──────────┴────────┴─────────┴──────────┘ │           ▲  │        │
//	   │                     │ forgotten                     │       read│  │forgotten
//	   │                  dropped ──── a row was, or may ────┼──► ─┐ suspect│        │
//	   │                     │         have been, written    │     │     │  │        │
//	   │                     │ ended                         │     ▼     ▼  ▼        ▼
//	   └─ canceled ─► gone ◄─┴─────────────────── released ◄─── deleted ◄─ deleting ◄┘
//	                           no readers left           synced       row deleted
//
// Opening the directory creates entries as logged or suspect, or as dormant if the file
// of their profile cannot be used: dormant entries are counted and evictable, but lookups
// do not find them before the profile is known. Closing the directory forgets all entries
// at once, by closing their pools.
type phase uint8

const (
	admitted   phase = iota // room is counted, the write is not started yet
	starting                // Start evicts what Admit has left to it
	queued                  // waits for a worker
	writing                 // a worker writes its bytes
	written                 // its bytes are in slabs, but its row is not in the catalogue
	committing              // its row is being written
	dormant                 // its row is valid, but its profile is not known yet
	suspect                 // live: from before the directory was opened; its bytes may not have been synced
	logged                  // live
	synced                  // live
	dropped                 // forgotten while in flight: its worker or the committer ends the write
	deleting                // forgotten: its row will be deleted
	deleted                 // its row is deleted, but not synced
	released                // the deletion is synced: its space is free after the last reader
	gone                    // its space is free
	phases
)

var phaseNames = [phases]string{
	"admitted", "starting", "queued", "writing", "written", "committing", "dormant", "suspect", "logged", "synced",
	"dropped", "deleting", "deleted", "released", "gone",
}

func (p phase) String() string { return phaseNames[p] }

func (p phase) pending() bool { return p <= committing }
func (p phase) kept() bool    { return p >= dormant && p <= synced } // has a row
func (p phase) live() bool    { return p >= suspect && p <= synced }

// mayBecome lists the phases that may follow each phase: the arrows of the diagram, and
// from each phase in flight to gone, for when the directory is closed.
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

// level returns the durability of an entry in this phase.
func (p phase) level() tier.Level {
	switch p {
	case logged:
		return tier.LevelLogged
	case synced:
		return tier.LevelSynced
	}
	return tier.LevelMemory
}

// entry is an object on disk, or in flight to it. The first group of fields is fixed,
// except that the location in Row is set when the bytes are written, Row.Level may change,
// and a dormant entry gets its model later. The tier's lock guards all other fields.
type entry struct {
	catalog.Row
	model *model
	owner *account
	pool  *pool

	phase    phase
	id       policy.ID
	bytes    int64 // space of its runs; an upper bound while in flight, as is HeaderBytes
	used     time.Time
	usedNews bool   // used is newer than the time in the catalogue
	evicts   bool   // evictable: the policies track it
	readers  int    // reads in progress
	pins     int    // 1 while in flight, 1 while read, and 1 for each child with pins; not evictable if > 0
	public   bool   // listed in Config.Held and the segment index
	failures int    // value of mount.failures when its bytes were written
	proven   bool   // its seal was compared or created since the directory was opened
	write    *write // nil unless in flight

	parent      *entry
	child       *entry // the first of its children
	children    int
	older, next *entry // siblings in both directions
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

// view returns the store's view of an entry.
func (e *entry) view() tier.Entry {
	return tier.Entry{
		Name: e.name(), Fingerprint: e.Fingerprint, Tenant: e.owner.ID, Spec: e.Spec, Packed: e.Packed, Begin: e.Begin, End: e.End,
		Parent: tierName(e.Parent), Children: e.children, Bytes: e.charge(), Level: e.phase.level(), Generation: e.Generation,
	}
}

// charge returns the bytes that the tenant is charged for: the entry's runs, and the
// header's size once more for its rows in the catalogue. The rows contain the same data
// as the header, mostly the manifest with its token ids and digests. A header takes at
// least 8 KiB, several times the entry's size in memory.
func (e *entry) charge() int64 { return e.bytes + int64(e.HeaderBytes) }

// forgotten reports whether the entry was removed, or its directory was closed.
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

// leave removes e from its parent.
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
