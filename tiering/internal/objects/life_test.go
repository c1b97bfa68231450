package objects

import (
	"testing"
)

func TestLifeOfAnObjectBeginsAndEnds(t *testing.T) {
	reached, ends := map[phase]bool{described: true}, map[phase]bool{freed: true}
	for range int(phases) {
		for p := range phases {
			for e := range events {
				next := life[p][e]
				if next == described {
					continue
				}
				if reached[p] {
					reached[next] = true
				}
				if ends[next] {
					ends[p] = true
				}
			}
		}
	}
	for p := range phases {
		if !reached[p] || !ends[p] {
			t.Errorf("%v: reached %v, leads to the end %v", p, reached[p], ends[p])
		}
	}
	if life[freed] != [events]phase{} {
		t.Error("something happens to an object that is freed")
	}
}

func TestWhatCannotHappenToAnObjectPanics(t *testing.T) {
	for p := range phases {
		for e := range events {
			o := &Object{Phase: p}
			func() {
				defer func() {
					if failed := recover() != nil; failed != (life[p][e] == described) {
						t.Errorf("%v is %v: panics %v", p, e, failed)
					}
				}()
				o.on(e)
			}()
			if next := life[p][e]; next != described && o.Phase != next || next == described && o.Phase != p {
				t.Errorf("%v is %v: became %v", p, e, o.Phase)
			}
		}
	}
}
