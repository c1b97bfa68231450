package tier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Remotes combines several sources, nearest first. It asks for an object at the source
// whose hint promises it soonest, and then at the other sources. All objects that it asks
// one source for at the same time form one query.
type Remotes []Remote

var _ Remote = Remotes(nil)

// Hint implements Remote. It returns the hint of the source that is expected to deliver
// the object soonest.
func (rs Remotes) Hint(w *Want) (best Hint, found bool) {
	for _, r := range rs {
		h, ok := r.Hint(w)
		if ok && (!found || sooner(h, best)) {
			best, found = h, true
		}
	}
	return best, found
}

// sooner reports whether the source of hint a is expected to deliver before the nearer
// source of hint b. It is false unless both times are known, so that sources without
// measurements keep their order.
func sooner(a, b Hint) bool {
	x, y := a.expected(), b.expected()
	return x > 0 && y > 0 && x < y
}

// order returns the order in which to ask the sources: first the source that is expected to
// deliver soonest, then other sources with a hint, then sources without a hint. Sources
// without a hint are asked too: no hints are requested for a checkpoint's ancestors, and a
// source may have more objects than its hints show.
func (rs Remotes) order(w *Want) []int {
	var hinted, others []int
	var best Hint
	for i, r := range rs {
		h, ok := r.Hint(w)
		switch {
		case !ok:
			others = append(others, i)
		case len(hinted) == 0 || sooner(h, best):
			hinted, best = slices.Insert(hinted, 0, i), h
		default:
			hinted = append(hinted, i)
		}
	}
	return append(hinted, others...)
}

// Find implements Remote. If a source fails, only its own answers are missing. Its error
// is returned only if no source found anything.
func (rs Remotes) Find(ctx context.Context, wants []Want) ([]Copy, error) {
	rows, orders := make([]Copy, len(wants)), make([][]int, len(wants))
	for i := range wants {
		orders[i] = rs.order(&wants[i])
	}
	var failed error
	some := false
	for round := range rs {
		groups := make([][]int, len(rs)) // rows by source
		for i := range wants {
			if rows[i] == nil {
				groups[orders[i][round]] = append(groups[orders[i][round]], i)
			}
		}
		errs := make([]error, len(rs))
		var asking sync.WaitGroup
		for at, group := range groups {
			if len(group) > 0 {
				asking.Go(func() { errs[at] = ask(ctx, rs[at], wants, group, rows) })
			}
		}
		asking.Wait()
		failed = errors.Join(failed, errors.Join(errs...))
		some = some || slices.ContainsFunc(rows, func(c Copy) bool { return c != nil })
		if ctx.Err() != nil {
			closeAll(rows)
			return nil, fmt.Errorf("find: %w", ctx.Err())
		}
	}
	if failed != nil && !some {
		return nil, failed
	}
	return rows, nil
}

// ask sends some of the wants to one source and stores the answers in their rows.
func ask(ctx context.Context, r Remote, wants []Want, group []int, rows []Copy) error {
	some := make([]Want, len(group))
	for k, i := range group {
		some[k] = wants[i]
	}
	copies, err := r.Find(ctx, some)
	if err == nil && len(copies) != len(some) {
		err = fmt.Errorf("find: %d answers to %d questions: %w", len(copies), len(some), ErrUnavailable)
	}
	if err != nil {
		closeAll(copies)
		return err
	}
	for k, i := range group {
		rows[i] = copies[k]
	}
	return nil
}

func closeAll(copies []Copy) {
	for _, c := range copies {
		if c != nil {
			c.Close()
		}
	}
}

var (
	_ Learner  = Remotes(nil)
	_ Preparer = Remotes(nil)
)

// Prepare implements Preparer. It passes the call only to the first source that is a
// Preparer, which alone may set marks.
func (rs Remotes) Prepare(wants []Want) {
	for _, r := range rs {
		if p, ok := r.(Preparer); ok {
			p.Prepare(wants)
			return
		}
	}
}

// Learning implements Learner. It reports whether any source is learning.
func (rs Remotes) Learning() bool {
	learning := false
	for _, r := range rs { // calls every source, also after one reports true
		if l, ok := r.(Learner); ok && l.Learning() {
			learning = true
		}
	}
	return learning
}

// Learn implements Learner. It asks all sources that are learning, concurrently.
func (rs Remotes) Learn(ctx context.Context, wants []Want) {
	var asking sync.WaitGroup
	for _, r := range rs {
		if l, ok := r.(Learner); ok && l.Learning() {
			asking.Go(func() { l.Learn(ctx, wants) })
		}
	}
	asking.Wait()
}
