package peer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

func TestSlotsAreGivenInTheOrderOfCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots{free: 1}
		noError(t, s.take(t.Context(), 9))
		var got []uint64
		given, goOn := make(chan uint64), make(chan struct{})
		gone, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- s.take(gone, 0) }()
		for _, order := range []uint64{3, 1, 2, 1} {
			go func() {
				_ = s.take(t.Context(), order)
				given <- order
				<-goOn
				s.give()
			}()
			synctest.Wait()
		}
		leave() // who gives up is passed over
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.give()
		for range 4 {
			got = append(got, <-given)
			goOn <- struct{}{}
		}
		synctest.Wait()
		if !slices.Equal(got, []uint64{1, 1, 2, 3}) || s.free != 1 || len(s.waiting) != 0 {
			t.Errorf("given to %v; %d are free, %d wait", got, s.free, len(s.waiting))
		}
	})
}

// A right that comes at the moment in which its waiter gives up is not lost.
func TestASlotIsNotLostWithItsWaiter(t *testing.T) {
	s := slots{}
	ctx, leave := context.WithCancel(context.Background())
	for range 2000 {
		done := make(chan error, 1)
		go func() { done <- s.take(ctx, 1) }()
		go leave()
		s.give()
		if <-done != nil {
			noError(t, s.take(context.Background(), 1))
		}
		ctx, leave = context.WithCancel(context.Background())
	}
	leave()
	if s.free != 0 || len(s.waiting) != 0 {
		t.Errorf("%d are free, %d wait", s.free, len(s.waiting))
	}
}
