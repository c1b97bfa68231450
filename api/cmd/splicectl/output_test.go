package main

import (
	"errors"
	"iter"
	"testing"
)

// listed is the document of a listing.
type listed[T any] struct {
	Items []T  `json:"items"`
	More  bool `json:"more"`
}

func TestTakeStopsAtItsLimitAndAtErrors(t *testing.T) {
	numbers := func(n int, end error) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := range n {
				if !yield(i, nil) {
					return
				}
			}
			if end != nil {
				yield(0, end)
			}
		}
	}
	rows := []struct {
		n, limit, want int
		more           bool
	}{{5, 0, 5, false}, {5, 5, 5, false}, {5, 4, 4, true}, {0, 3, 0, false}}
	for _, r := range rows {
		got, more, err := take(numbers(r.n, nil), r.limit)
		if err != nil || len(got) != r.want || got == nil || more != r.more {
			t.Errorf("%+v: %v more=%v %v", r, got, more, err)
		}
	}
	broken := errors.New("broken")
	if _, _, err := take(numbers(2, broken), 5); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
