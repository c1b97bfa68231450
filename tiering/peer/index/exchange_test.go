package index

import (
	"errors"
	"testing"
)

func TestTwoNodesLearnFromEachOther(t *testing.T) {
	nodes := []Exchange{{NewOwn(11), New(Config{})}, {NewOwn(22), New(Config{})}}
	for i := range uint64(40_000) { // two answers
		nodes[0].Own.Add(i * 0x9e3779b97f4a7c15)
	}
	last := uint64(0x9e3779b97f4a7c15)
	last *= 39_999
	nodes[1].Own.Add(1 << 62)
	for i, asks := range nodes {
		answers := 0
		for more := true; more; answers++ {
			answer, err := nodes[1-i].Answer(nil, asks.Ask(7))
			if err != nil || len(answer) > MaxDelta {
				t.Fatal(len(answer), err)
			}
			if more, err = asks.Learn(7, answer); err != nil {
				t.Fatal(err)
			}
		}
		if want := 1 + i; answers != want {
			t.Errorf("node %d: %d answers, want %d", i, answers, want)
		}
	}
	if nodes[1].Index.Holders(last, nil) != 1 || nodes[0].Index.Holders(1<<62, nil) != 1 {
		t.Error("they know nothing of each other")
	}
	if _, err := nodes[0].Answer(nil, []byte("?")); !errors.Is(err, ErrInvalid) {
		t.Errorf("a question that is none: %v", err)
	}
}
