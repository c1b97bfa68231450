package index

import (
	"fmt"
	"time"
)

// Exchange combines both ends of the exchange between nodes, for a transport of bytes. Its
// methods may be called concurrently, but the requests to one peer must be sequential.
type Exchange struct {
	Own   *Own
	Index *Index
}

// Interval returns the time between two requests to the same peer, as the function
// Interval does.
func (Exchange) Interval(peers int) time.Duration { return Interval(peers) }

// Ask returns the next request to a peer: PositionSize bytes.
func (e Exchange) Ask(number uint16) []byte { return e.Index.Position(Node(number)).AppendTo(nil) }

// Answer appends the answer to a peer's request to dst, at most MaxDelta bytes. It returns
// ErrInvalid if question is not a request.
func (e Exchange) Answer(dst, question []byte) ([]byte, error) {
	from, err := ParsePosition(question)
	if err != nil {
		return dst, fmt.Errorf("question of %d bytes: %w", len(question), err)
	}
	return e.Own.Delta(dst, from), nil
}

// Learn applies a peer's answer, like Index.Apply.
func (e Exchange) Learn(number uint16, answer []byte) (more bool, err error) {
	return e.Index.Apply(Node(number), answer)
}
