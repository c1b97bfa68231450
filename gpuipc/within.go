package gpuipc

import (
	"context"
	"time"
)

// Within runs the function call and returns its result. If call has not returned after
// limit, or when ctx ends, answered is false and err is the context's error. When call
// returns later, its result is passed to the function late. A driver may never return from
// a call for a device that fell off its bus.
func Within[T any](ctx context.Context, limit time.Duration, call func() (T, error), late func(T, error)) (answer T, answered bool, err error) {
	type result struct {
		answer T
		err    error
	}
	came, gaveUp := make(chan result), make(chan struct{})
	go func() {
		var r result
		r.answer, r.err = call()
		select {
		case came <- r:
		case <-gaveUp:
			late(r.answer, r.err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case r := <-came:
		return r.answer, true, r.err
	case <-ctx.Done():
		close(gaveUp)
		return answer, false, ctx.Err()
	}
}
