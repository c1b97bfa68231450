package gpuipc

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestWithinAnswersOrIsToldLate(t *testing.T) {
	failed := errors.New("failed")
	never := func(n int, err error) { t.Errorf("late: %d, %v", n, err) }
	for _, want := range []error{nil, failed} {
		n, answered, err := Within(t.Context(), time.Minute, func() (int, error) { return 7, want }, never)
		if n != 7 || !answered || !errors.Is(err, want) {
			t.Errorf("%d, %t, %v", n, answered, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for why, given := range map[error]struct {
		ctx   context.Context
		limit time.Duration
	}{context.DeadlineExceeded: {t.Context(), time.Nanosecond}, context.Canceled: {ended, time.Minute}} {
		release, came := make(chan struct{}), make(chan error)
		n, answered, err := Within(given.ctx, given.limit, func() (int, error) {
			<-release
			return 7, failed
		}, func(n int, err error) {
			if n != 7 {
				t.Errorf("late: %d", n)
			}
			came <- err
		})
		if n != 0 || answered || !errors.Is(err, why) {
			t.Errorf("%d, %t, %v, want %v", n, answered, err, why)
		}
		close(release)
		if err := <-came; !errors.Is(err, failed) {
			t.Errorf("late: %v", err)
		}
	}
}
