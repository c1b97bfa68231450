package hostile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/connector"
)

// One client registers a profile for every place, leaves a segment with each so that it
// is not empty, and goes away or stays.
func TestHostileProfilesDoNotTakeAllPlaces(t *testing.T) {
	v := start(t, bounds{})
	n := v.neighbour()
	const rounds, each = 4, 60
	var taken, refused int
	attack := func(i int) *connector.Client {
		c := v.client(connector.Options{Name: "attacker"})
		for k := range each {
			m, err := c.Register(modelNamed(fmt.Sprintf("attacker %d %d", i, k)), connector.Binding{})
			if err == nil {
				err = m.Ready()
			}
			switch {
			case err == nil:
				taken++
				if _, err := put(m, 64); err != nil {
					t.Errorf("put: %v", err)
				}
			case errors.Is(err, connector.ErrBusy):
				refused++
			default:
				t.Fatal(err)
			}
		}
		return c
	}
	felt := n.during(func() {
		// It stays, and others find places.
		c := attack(0)
		if taken > 16 {
			t.Errorf("one connection has %d of 64 profiles", taken)
		}
		registered(t, v.client(connector.Options{Name: "other"}), modelNamed("other"), connector.Binding{})
		c.Close()
		// It comes and goes, and what it leaves behind makes room.
		for i := range rounds {
			attack(i + 1).Close()
		}
	})
	other := v.client(connector.Options{Name: "late"})
	for i := range 16 {
		m := registered(t, other, modelNamed(fmt.Sprintf("late %d", i)), connector.Binding{})
		if _, err := put(m, 64); err != nil {
			t.Errorf("a client after the attack: %v", err)
		}
	}
	v.mustRun()
	report(t, fmt.Sprintf("%d profiles with a segment each, on %d connections", (rounds+1)*each, rounds+1),
		fmt.Sprintf("16 places at a time, %d in all, busy %d times", taken, refused), felt)
}
