package payload

import "github.com/spliced-kv/spliced/tiering/disk/extent"

// tags holds the tags of an entry's units during a read. They are computed as the units
// arrive, so that little work is left for the last chunk when its last byte arrives. The
// zero value is for an entry whose seal is not verified.
type tags struct {
	units []chunk
	first []int  // for each chunk, the index of its first unit
	made  []byte // the tags, by unit
}

func newTags(chunks []chunk) (t tags) {
	for _, c := range chunks {
		t.first = append(t.first, len(t.units))
		for at := int64(0); at < c.n; at += extent.UnitBytes {
			t.units = append(t.units, chunk{c.rank, c.part, c.off + at, min(extent.UnitBytes, c.n-at)})
		}
	}
	t.made = make([]byte, len(t.units)*extent.TagBytes)
	return t
}

// ofChunk returns the units of chunk k.
func (t *tags) ofChunk(k int) span {
	switch {
	case len(t.units) == 0:
		return span{}
	case k+1 < len(t.first):
		return span{t.first[k], t.first[k+1]}
	}
	return span{t.first[k], len(t.units)}
}

// ofChunks returns the tags of all chunks, computed from the tags of their units.
func (t *tags) ofChunks(key *extent.Key) (joined []byte) {
	for k := range t.first {
		u := t.ofChunk(k)
		joined = key.Join(joined, t.made[u.first*extent.TagBytes:u.end*extent.TagBytes])
	}
	return joined
}

// tagUnit computes the tag of unit u from the bytes in memory.
func (r *reading) tagUnit(u int) {
	c, at := &r.seal.units[u], u*extent.TagBytes
	r.Key.Unit(r.seal.made[at:at:at+extent.TagBytes], r.views[c.rank].window(c.off, c.n))
}

// tagChunk computes the tags of all units of a chunk.
func (r *reading) tagChunk(k int) {
	units := r.seal.ofChunk(k)
	for u := units.first; u < units.end; u++ {
		r.tagUnit(u)
	}
}
