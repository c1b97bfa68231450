package lockhold

import "testing"

func TestEachCallsForAllInOrder(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 5, 100} {
		var m Mutex
		var got []int
		m.Each(n, 4, func(i int) {
			if m.TryLock() {
				t.Fatal("called without the lock")
			}
			got = append(got, i)
		})
		if len(got) != n {
			t.Fatalf("%d of %d calls", len(got), n)
		}
		for i := range got {
			if got[i] != i {
				t.Fatalf("call %d is for %d", i, got[i])
			}
		}
		if want := uint64(n+3) / 4; m.uses != want {
			t.Errorf("%d rows take the lock %d times, want %d", n, m.uses, want)
		}
		if !m.TryLock() {
			t.Errorf("the lock is still held after %d rows", n)
		}
	}
}

// Who waits for the lock has it between two turns, however many there are.
func TestTurnsLetOthersHaveTheLock(t *testing.T) {
	var m Mutex
	turns := m.Turns()
	for range 3 * shortTurns {
		turns.Lock()
		if turns.others {
			t.Fatal("others are seen where there are none")
		}
		turns.Unlock()
	}
	m.Each(1, 1, func(int) {})
	turns.Lock()
	if !turns.others {
		t.Error("a use by somebody else is not seen")
	}
	turns.Unlock()
	turns.Lock()
	if turns.others {
		t.Error("a use before the last turn counts again")
	}
	turns.Unlock()
}
