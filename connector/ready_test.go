package connector

import (
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/connector/internal/link"
)

// While a profile is asked for again, calls say what the daemon said last, not that
// there is none.
func TestReadySaysTheLastAnswerWhileItIsAskedAgain(t *testing.T) {
	c := &Client{}
	a := &link.Attachment{}
	m := &Model{client: c}
	m.mu.reg = &registration{a: a, done: make(chan struct{}), last: ErrBusy}
	if err := m.Ready(); !errors.Is(err, ErrBusy) {
		t.Errorf("asked again after busy: %v", err)
	}
	m.mu.reg = &registration{a: a, done: make(chan struct{})}
	if err := m.Ready(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("asked for the first time: %v", err)
	}
}
