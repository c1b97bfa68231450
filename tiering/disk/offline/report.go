package offline

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Report contains the findings of Check or Repair.
type Report struct {
	Version      int    `json:"version"`
	Store        string `json:"store"`
	GranuleBytes int64  `json:"granule_bytes"`
	Slabs        int    `json:"slabs"`
	SlabBytes    int64  `json:"slab_bytes"`
	UsedBytes    int64  `json:"used_bytes"` // in the runs of entries
	FreeBytes    int64  `json:"free_bytes"` // inside slabs
	Profiles     int    `json:"profiles"`

	Segments        int   `json:"segments"`
	SegmentBytes    int64 `json:"segment_bytes"`
	Checkpoints     int   `json:"checkpoints"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	PayloadBytes    int64 `json:"payload_bytes_verified"` // read and compared

	// Extents that verify and have no row: their entries were removed, or lost by a
	// damaged catalogue. A deep check looks for them if the catalogue is readable.
	Rowless      int   `json:"without_row"`
	RowlessBytes int64 `json:"without_row_bytes"`

	Problems     []Problem `json:"problems"`
	MoreProblems int       `json:"more_problems,omitempty"` // number of problems not listed
	Unread       int       `json:"unread,omitempty"`        // entries that the disk cannot read, or whose profiles are missing; Repair keeps them

	// Results of Repair.
	Format    bool   `json:"format,omitempty"`     // FORMAT was rewritten
	Restored  int    `json:"restored,omitempty"`   // rewritten headers of slabs
	Removed   int    `json:"removed,omitempty"`    // slab files that held nothing
	Rebuilt   bool   `json:"rebuilt,omitempty"`    // the catalogue was rebuilt from slabs
	KeptIndex string `json:"kept_index,omitempty"` // folder of the old catalogue
	Forgotten int    `json:"forgotten,omitempty"`  // rows deleted, or extents not adopted
	TakenUp   int    `json:"taken_up,omitempty"`   // extents that got a row in an existing catalogue
}

// Problem is one problem, with its location as far as known.
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
	case p.Slab != 0 && p.Off == 0:
		return fmt.Sprintf("slab %d: %s", p.Slab, p.What)
	case p.Slab != 0:
		return fmt.Sprintf("slab %d at %d: %s", p.Slab, p.Off, p.What)
	}
	return p.What
}

// text returns the text of an error without the kinds at its end, which say nothing to an
// operator.
func text(err error) string {
	s, all := err.Error(), ""
	for s != all {
		all = s
		for _, kind := range [...]error{tier.ErrCorrupt, tier.ErrInvalid, tier.ErrUnavailable} {
			s = strings.TrimSuffix(s, ": "+kind.Error())
		}
	}
	return s
}

// Clean reports whether there are no problems.
func (r *Report) Clean() bool { return len(r.Problems) == 0 }

// maxProblems is the most problems that a report lists.
const maxProblems = 10000

func (r *Report) problem(p Problem) {
	if len(r.Problems) == maxProblems {
		r.MoreProblems++
		return
	}
	r.Problems = append(r.Problems, p)
}

func (r *Report) bad(n extent.Name, runs []slab.Run, err error) {
	p := Problem{Name: tier.Name{Kind: tier.CheckpointKind(n.Kind), Key: n.Key}, Kind: kindName(n.Kind), Key: hex.EncodeToString(n.Key[:]), What: text(err)}
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
