package index

import (
	"fmt"
	"time"
)

// Exchange is both ends of what nodes ask each other, for whoever carries the bytes.
// Questions to one peer are asked in turn; its methods may otherwise be called at once.
type Exchange struct {
	Own   *Own
	Index *Index
}

// Interval is how often each of so many peers is asked.
func (Exchange) Interval(peers int) time.Duration { return Interval(peers) }

// Ask gives the next question to a peer: PositionSize bytes.
func (e Exchange) Ask(number uint16) []byte { return e.Index.Position(Node(number)).AppendTo(nil) }

// Answer appends the answer to a peer's question to dst, at most MaxDelta bytes. Its error
// is ErrInvalid.
func (e Exchange) Answer(dst, question []byte) ([]byte, error) {
	from, err := ParsePosition(question)
	if err != nil {
		return dst, fmt.Errorf("question of %d bytes: %w", len(question), err)
	}
	return e.Own.Delta(dst, from), nil
}

// Learn takes a peer's answer, as Apply does.
func (e Exchange) Learn(number uint16, answer []byte) (more bool, err error) {
	return e.Index.Apply(Node(number), answer)
}
