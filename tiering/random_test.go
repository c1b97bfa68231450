package tiering

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/stats"
)

// What the tests that do random operations on a store have in common. A run of one seed
// always goes the same way: -run with the subtest's name replays it.

// runRandom runs some seeds of each set of options. In short tests there are fewer seeds
// and steps. wants tells, once all seeds of a set have run, what they have to have met.
func runRandom[O any](t *testing.T, sets []O, seeds, short uint64, steps, shortSteps int,
	run func(t *testing.T, o O, seed uint64, steps int, seen *met), wants func(o O, seeds uint64, seen *met) map[string]bool) {
	if testing.Short() {
		seeds, steps = min(seeds, short), shortSteps
	}
	for i, o := range sets {
		var seen met
		ran := uint64(0)
		for seed := range seeds {
			t.Run(fmt.Sprintf("options=%d/seed=%d", i, seed), func(t *testing.T) {
				ran++
				run(t, o, seed, steps, &seen)
			})
		}
		// One that is replayed may meet little, and so may short ones.
		if ran < seeds || testing.Short() {
			continue
		}
		for what, ok := range wants(o, seeds, &seen) {
			if !ok {
				t.Errorf("options %d: %d runs did not meet as they should: %s", i, seeds, what)
			}
		}
	}
}

// met sums what runs met, since those that meet nothing prove nothing.
type met struct {
	stats.Counters
	restarts, returned uint64
}

func (m *met) add(n stats.Counters) { addUp(reflect.ValueOf(&m.Counters).Elem(), reflect.ValueOf(n)) }

func addUp(sum, n reflect.Value) {
	switch sum.Kind() {
	case reflect.Struct:
		for i := range sum.NumField() {
			addUp(sum.Field(i), n.Field(i))
		}
	case reflect.Array:
		for i := range sum.Len() {
			addUp(sum.Index(i), n.Index(i))
		}
	default:
		sum.SetUint(sum.Uint() + n.Uint())
	}
}

// treeHash names checkpoint n of a binary tree, in which n extends n/2.
func treeHash(n int) profile.PrefixHash { return profile.PrefixHash{byte(n * 41), byte(n), 9} }
