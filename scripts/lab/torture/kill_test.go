package torture

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMomentsOfEveryKindAreDrawn(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var seen [events]int
	for range 1000 {
		m := drawMoment(rng)
		seen[m.event]++
		if m.limit < earliest || m.limit > latest || m.delay < 0 || m.delay > jitter || (m.event == atTime) != (m.n == 0) {
			t.Fatalf("%+v", m)
		}
		if strings.TrimSpace(m.String()) == "" {
			t.Errorf("%+v has no text", m)
		}
	}
	for e, n := range seen {
		if n < 100 {
			t.Errorf("event %d was drawn %d times of 1000", e, n)
		}
	}
}

func TestFuseBurnsAtTheNthEventAfterItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kills atomic.Int64
		f := light(moment{event: afterAck, n: 3, delay: 5 * time.Millisecond, limit: time.Second}, func() { kills.Add(1) })
		for range 10 {
			f.at(afterRead)
		}
		f.at(afterAck)
		f.at(afterAck)
		time.Sleep(500 * time.Millisecond)
		if f.over() {
			t.Fatal("burnt before its event")
		}
		f.at(afterAck)
		time.Sleep(4 * time.Millisecond)
		if f.over() {
			t.Fatal("burnt before its delay")
		}
		time.Sleep(2 * time.Millisecond)
		if !f.over() || kills.Load() != 1 {
			t.Fatalf("over %v after %d kills", f.over(), kills.Load())
		}
		f.at(afterAck)
		time.Sleep(2 * time.Second)
		if f.out(); kills.Load() != 1 {
			t.Errorf("killed %d times", kills.Load())
		}
	})
}

func TestFuseBurnsWithoutItsEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kills atomic.Int64
		f := light(moment{event: inFill, n: 3, limit: time.Second}, func() { kills.Add(1) })
		time.Sleep(time.Second + time.Millisecond)
		if !f.over() || kills.Load() != 1 {
			t.Errorf("over %v after %d kills", f.over(), kills.Load())
		}
		early := light(moment{limit: time.Second}, func() { kills.Add(1) })
		if early.over() {
			t.Error("over before its time")
		}
		early.out() // nobody is left to wait for
		if !early.over() || kills.Load() != 2 {
			t.Errorf("over %v after %d kills", early.over(), kills.Load())
		}
		time.Sleep(2 * time.Second)
		if kills.Load() != 2 {
			t.Errorf("killed %d times", kills.Load())
		}
	})
}
