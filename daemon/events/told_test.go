package events

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// router is what a subscriber believes: by group, which blocks are held, and what prompt
// each of them ends.
type router struct {
	t      *testing.T
	groups map[int]map[uint64][]uint32 // by hash: the prompt's ids up to the end of the block
	// catchingUp: batches come behind a state that they have led to. What they say of a
	// block that is gone means nothing, and routers leave it out.
	catchingUp bool
}

func (r *router) hear(events []event) {
	r.t.Helper()
	for i := range events {
		v := &events[i]
		if r.groups[v.group] == nil {
			r.groups[v.group] = map[uint64][]uint32{}
		}
		switch v.tag {
		case stored:
			if len(v.tokens) != len(v.hashes)*v.block {
				r.t.Fatalf("%d ids for %d blocks of %d", len(v.tokens), len(v.hashes), v.block)
			}
			at := []uint32(nil)
			if v.parent != 0 {
				var ok bool
				if at, ok = r.groups[0][v.parent]; !ok && r.catchingUp {
					continue
				} else if !ok {
					r.t.Fatalf("group %d: the parent of %x is not known", v.group, v.hashes[0])
				}
			}
			for n, h := range v.hashes {
				at = append(slices.Clone(at), v.tokens[n*v.block:(n+1)*v.block]...)
				r.groups[v.group][h] = at
			}
		case removed:
			for _, h := range v.hashes {
				if _, ok := r.groups[v.group][h]; !ok && !r.catchingUp {
					r.t.Fatalf("group %d: %x is removed that was not there", v.group, h)
				}
				delete(r.groups[v.group], h)
			}
		case cleared:
			clear(r.groups)
		}
	}
}

func text(tokens []uint32) string { return fmt.Sprint(tokens) }

// prompts by text that a router believes to be held, of one group.
func (r *router) believes(group int) []string {
	var list []string
	for _, tokens := range r.groups[group] {
		list = append(list, text(tokens))
	}
	slices.Sort(list)
	return list
}

func newScope(number uint32, p *profile.Profile) *scope {
	return &scope{number: number, topic: fmt.Sprint("kv@n@", number), profile: p, salt: []byte{byte(number)}, groups: groupsOf(p)}
}

// Objects come and go; whoever hears all events, and whoever begins later with all that is
// told, believe just what is held.
func TestRoutersBelieveWhatIsHeld(t *testing.T) {
	const seed, blockTokens = 5, 4
	rng := rand.New(rand.NewPCG(seed, 1))
	tree := newTold(blockTokens, 1<<20)
	s := newScope(1, profiletest.New(profiletest.Hybrid(1)))
	r := &router{t: t, groups: map[int]map[uint64][]uint32{}}
	type held struct {
		want   tier.Want
		tokens []uint32
	}
	var objects []held
	for step := range 3000 {
		if len(objects) > 0 && rng.IntN(5) < 2 || len(objects) > 60 {
			i := rng.IntN(len(objects))
			events, of := tree.remove(objects[i].want)
			if of != s {
				t.Fatalf("seed %d step %d: removed of another scope", seed, step)
			}
			r.hear(events)
			objects = slices.Delete(objects, i, i+1)
		} else {
			tokens := make([]uint32, 1+rng.IntN(30))
			for i := range tokens {
				tokens[i] = rng.Uint32N(2) / uint32(1+i%3) // many begin alike
			}
			w := tier.Want{Tenant: 1}
			w.Kind, w.Key[0], w.Key[1] = tier.Exact, byte(step), byte(step>>8)
			events, full := tree.add(w, s, tokens)
			if full {
				t.Fatal("no room")
			}
			r.hear(events)
			if again, _ := tree.add(w, s, tokens); again != nil {
				t.Fatal("the same object is told twice")
			}
			if len(tokens) >= blockTokens {
				objects = append(objects, held{w, tokens})
			}
		}
		if step%20 > 0 {
			continue
		}
		rows, states := map[string]bool{}, map[string]bool{}
		for _, o := range objects {
			for end := blockTokens; end <= len(o.tokens); end += blockTokens {
				rows[text(o.tokens[:end])] = true
			}
			states[text(o.tokens[:len(o.tokens)/blockTokens*blockTokens])] = true
		}
		late := &router{t: t, groups: map[int]map[uint64][]uint32{}}
		for _, run := range tree.runs() {
			late.hear(run.events(blockTokens))
		}
		for _, who := range []*router{r, late} {
			if got := who.believes(0); len(got) != len(rows) || slices.ContainsFunc(got, func(s string) bool { return !rows[s] }) {
				t.Fatalf("seed %d step %d: rows of %d prefixes are believed, %d are held", seed, step, len(got), len(rows))
			}
			if got := who.believes(1); len(got) != len(states) || slices.ContainsFunc(got, func(s string) bool { return !states[s] }) {
				t.Fatalf("seed %d step %d: states of %d prefixes are believed, %d are held", seed, step, len(got), len(states))
			}
		}
	}
	for _, o := range objects {
		events, _ := tree.remove(o.want)
		r.hear(events)
	}
	if len(r.believes(0)) > 0 || len(r.believes(1)) > 0 || tree.bytes != 0 || len(tree.blocks) > 0 || len(tree.objects) > 0 {
		t.Errorf("nothing is held: %d rows, %d states, %d bytes, %d blocks", len(r.believes(0)), len(r.believes(1)), tree.bytes, len(tree.blocks))
	}
}

func TestWhatIsToldFitsItsMemory(t *testing.T) {
	tree := newTold(16, 50_000)
	s := newScope(1, profiletest.New(profiletest.Hybrid(1)))
	told := 0
	for i := range 100 {
		tokens := make([]uint32, 160)
		tokens[0] = uint32(i)
		w := tier.Want{}
		w.Key[0] = byte(i)
		if _, full := tree.add(w, s, tokens); !full {
			told++
		}
		if tree.bytes > tree.most {
			t.Fatalf("%d bytes, at most %d", tree.bytes, tree.most)
		}
	}
	if told == 0 || told == 100 {
		t.Errorf("%d of 100 objects are told", told)
	}
	if _, full := tree.addMid(tier.Want{Tenant: 3}, s, profile.SegmentSpec{}, make([]uint32, 20_000)); !full {
		t.Error("a segment beyond the memory is told")
	}
}

func TestSegmentsThatStandAnywhereAreMarked(t *testing.T) {
	tree := newTold(16, 1<<20)
	p := profiletest.New(profiletest.Hybrid(1))
	s := newScope(1, p)
	w := tier.Want{Tenant: 1}
	w.Key[31] = 9
	spec := profile.SegmentSpec{Role: profile.RoleMid, Head: 8, Tail: 8, Tokens: 40}
	events, _ := tree.addMid(w, s, spec, make([]uint32, 40))
	if len(events) != 1 || events[0].kind != unknownKind || events[0].group != 2 || events[0].hashes[0] != 9 || events[0].block != 40 || events[0].extra[0] != midMarker {
		t.Errorf("%+v", events)
	}
	if !slices.Equal(events[0].extra, []any{midMarker, 8, 8}) {
		t.Errorf("extra keys %v", events[0].extra)
	}
	other := w
	other.Key[31], spec.Primer[0] = 10, 0xab
	primed, _ := tree.addMid(other, s, spec, make([]uint32, 40))
	if want := append([]any{midMarker, 8, 8}, "ab"+strings.Repeat("00", 31)); len(primed) != 1 || !slices.Equal(primed[0].extra, want) {
		t.Errorf("after a primer: %+v", primed)
	}
	_, _ = tree.remove(other)
	n := 0
	for _, run := range tree.runs() {
		n += len(run.events(blockTokens))
	}
	events, _ = tree.remove(w)
	if n != 1 || len(events) != 1 || events[0].tag != removed || events[0].group != 2 || tree.bytes != 0 {
		t.Errorf("%d events of all, removed by %+v", n, events)
	}
}

// Models without attention tell of states only, models without recurrent layers of rows
// only.
func TestGroupsAreThoseOfTheModel(t *testing.T) {
	for _, row := range []struct {
		groups []string
		want   []string
	}{
		{[]string{fullAttention, mamba}, []string{"0 full_attention", "1 mamba"}},
		{[]string{mlaAttention}, []string{"0 mla_attention"}},
		{[]string{mamba}, []string{"0 mamba"}},
		{nil, nil},
	} {
		tree, s := newTold(4, 1<<20), newScope(1, profiletest.New(profiletest.Hybrid(1)))
		s.groups = row.groups
		w := tier.Want{Tenant: 1}
		events, _ := tree.add(w, s, make([]uint32, 9))
		var got []string
		for _, v := range events {
			got = append(got, fmt.Sprint(v.group, " ", v.kind))
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%v: %v, want %v", row.groups, got, row.want)
		}
		if gone, _ := tree.remove(w); len(gone) != len(row.want) {
			t.Errorf("%v: removed by %+v", row.groups, gone)
		}
	}
	if got := groupsOf(profiletest.New(profiletest.Hybrid(1))); !slices.Equal(got, []string{fullAttention, mamba}) {
		t.Errorf("a hybrid has %v", got)
	}
}
