package offline

import (
	"encoding/hex"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Report is what Check or Repair found.
type Report struct {
	Version      int    `json:"version"`
	Store        string `json:"store"`
	GranuleBytes int64  `json:"granule_bytes"`
	Slabs        int    `json:"slabs"`
	SlabBytes    int64  `json:"slab_bytes"`
	UsedBytes    int64  `json:"used_bytes"` // in runs of entries
	FreeBytes    int64  `json:"free_bytes"` // inside slabs
	Profiles     int    `json:"profiles"`

	Segments        int   `json:"segments"`
	SegmentBytes    int64 `json:"segment_bytes"`
	Checkpoints     int   `json:"checkpoints"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	PayloadBytes    int64 `json:"payload_bytes_verified"` // read and compared

	// Extents that verify and have no row: of entries that have left, or that a damaged
	// catalogue has lost. A deep check of a catalogue that reads looks for them.
	Rowless      int   `json:"without_row"`
	RowlessBytes int64 `json:"without_row_bytes"`

	Problems     []Problem `json:"problems"`
	MoreProblems int       `json:"more_problems,omitempty"` // beyond those listed
	Unread       int       `json:"unread,omitempty"`        // entries that the disk does not read, or whose profiles are not here; Repair keeps them

	// By Repair.
	Format    bool   `json:"format,omitempty"`     // FORMAT was written anew
	Restored  int    `json:"restored,omitempty"`   // headers of slabs written anew
	Removed   int    `json:"removed,omitempty"`    // slab files that held nothing
	Rebuilt   bool   `json:"rebuilt,omitempty"`    // the catalogue was made anew from slabs
	KeptIndex string `json:"kept_index,omitempty"` // folder of the old one
	Forgotten int    `json:"forgotten,omitempty"`  // rows deleted, or extents not taken up
	TakenUp   int    `json:"taken_up,omitempty"`   // extents that were given a row beside those there were
}

// Problem is one thing that is wrong, with as much of where as is known.
type Problem struct {
	Name tier.Name `json:"-"`
	Kind string    `json:"kind,omitempty"`
	Key  string    `json:"key,omitempty"` // hex
	Slab uint32    `json:"slab,omitempty"`
	Off  int64     `json:"off,omitempty"` // in the slab
	What string    `json:"what"`
}

func (p Problem) String() string {
	switch {
	case p.Key != "":
		return fmt.Sprintf("%s %s: %s", p.Kind, p.Key, p.What)
	case p.Slab != 0:
		return fmt.Sprintf("slab %d at %d: %s", p.Slab, p.Off, p.What)
	}
	return p.What
}

// Clean says whether nothing is wrong.
func (r *Report) Clean() bool { return len(r.Problems) == 0 }

// maxProblems bounds a report.
const maxProblems = 10000

func (r *Report) problem(p Problem) {
	if len(r.Problems) == maxProblems {
		r.MoreProblems++
		return
	}
	r.Problems = append(r.Problems, p)
}

func (r *Report) bad(n extent.Name, runs []slab.Run, err error) {
	p := Problem{Name: tier.Name{Kind: tier.CheckpointKind(n.Kind), Key: n.Key}, Kind: kindName(n.Kind), Key: hex.EncodeToString(n.Key[:]), What: err.Error()}
	if len(runs) > 0 {
		p.Slab, p.Off = runs[0].Slab, runs[0].Off
	}
	r.problem(p)
}

func (r *Report) count(n extent.Name, runs []slab.Run) {
	bytes := slab.RunBytes(runs)
	r.UsedBytes += bytes
	if n.Kind == 0 {
		r.Segments++
		r.SegmentBytes += bytes
	} else {
		r.Checkpoints++
		r.CheckpointBytes += bytes
	}
}

func kindName(kind uint8) string {
	switch tier.CheckpointKind(kind) {
	case 0:
		return "segment"
	case tier.Exact:
		return "checkpoint"
	case tier.Spliced:
		return "spliced checkpoint"
	case tier.Rows:
		return "rows"
	}
	return fmt.Sprintf("kind %d", kind)
}
