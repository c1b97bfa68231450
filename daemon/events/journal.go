package events

import (
	"encoding/binary"
	"slices"
	"time"
)

// message is one batch as sent. It is immutable.
type message struct {
	topic   []byte
	seq     [8]byte // sequence number, big-endian
	payload []byte
}

// journal numbers the batches and keeps the latest ones. One goroutine uses it.
type journal struct {
	format Format
	now    func() time.Time
	next   uint64
	bytes  int64
	kept   []*message
}

// Limits of the kept batches. Their number is the default of vLLM's buffer_steps.
const (
	maxKept      = 10_000
	maxKeptBytes = 32 << 20
)

// newJournal returns a journal whose numbers begin below those of earlier runs: routers take a
// lower number for a restart, since the numbers of an engine restart at 0. It requires that the
// earlier runs published fewer than a million batches per second, and that the clock did not go
// back. The numbers are below 2^53, for readers that store them in a double.
func newJournal(f Format, now func() time.Time) *journal {
	return &journal{format: f, now: now, next: 1<<53 - uint64(now().UnixMicro())}
}

func (j *journal) seconds() float64 { return float64(j.now().UnixMicro()) / 1e6 }

func newMessage(f Format, seconds float64, topic string, seq uint64, events []event) *message {
	m := &message{topic: []byte(topic), payload: encodeBatch(f, seconds, events)}
	binary.BigEndian.PutUint64(m.seq[:], seq)
	return m
}

func (j *journal) append(topic string, events []event) *message {
	m := newMessage(j.format, j.seconds(), topic, j.next, events)
	j.next++
	j.kept = append(j.kept, m)
	j.bytes += int64(len(m.payload))
	for len(j.kept) > maxKept || j.bytes > maxKeptBytes && len(j.kept) > 1 {
		j.bytes -= int64(len(j.kept[0].payload))
		j.kept[0] = nil
		j.kept = j.kept[1:]
	}
	return m
}

// first returns the number of the oldest kept batch.
func (j *journal) first() uint64 { return j.next - uint64(len(j.kept)) }

// since returns the batches from a number on. It returns false if some of them are no longer kept,
// or if the number belongs to another run.
func (j *journal) since(from uint64) ([]*message, bool) {
	if from < j.first() || from > j.next {
		return nil, false
	}
	return slices.Clone(j.kept[from-j.first():]), true
}
