package events

import (
	"encoding/binary"
	"time"
)

// message is one batch as it is sent. It does not change.
type message struct {
	topic   []byte
	seq     [8]byte // big-endian
	payload []byte
}

// journal numbers batches and keeps the last ones. It belongs to one goroutine.
type journal struct {
	format Format
	now    func() time.Time
	next   uint64
	bytes  int64
	kept   []*message
}

// Bounds of what is kept; batches as vLLM's buffer_steps.
const (
	maxKept      = 10_000
	maxKeptBytes = 32 << 20
)

// newJournal begins with a number that no former run has reached: they publish fewer than
// a million batches a second.
func newJournal(f Format, now func() time.Time) *journal {
	return &journal{format: f, now: now, next: uint64(now().UnixMicro())}
}

func (j *journal) encode(topic string, seq uint64, events []event) *message {
	m := &message{topic: []byte(topic), payload: encodeBatch(j.format, float64(j.now().UnixMicro())/1e6, events)}
	binary.BigEndian.PutUint64(m.seq[:], seq)
	return m
}

func (j *journal) append(topic string, events []event) *message {
	m := j.encode(topic, j.next, events)
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

// first is the number of the oldest that is kept.
func (j *journal) first() uint64 { return j.next - uint64(len(j.kept)) }

// since lists the batches from a number on; false if some of them are not kept.
func (j *journal) since(from uint64) ([]*message, bool) {
	if from < j.first() {
		return nil, false
	}
	return append([]*message(nil), j.kept[min(from, j.next)-j.first():]...), true
}

// whole lists, for who has missed batches from a number on that are not kept, that all he
// knows is gone, all that is told now, and the batches that are kept: what they say last
// of a block agrees with what is told. Numbers ascend up to the first that is kept; where
// there are fewer of them than batches, several have one.
func (j *journal) whole(from uint64, topic string, all func(emit func(*scope, []event))) []*message {
	type part struct {
		topic  string
		events []event
	}
	parts := []part{{topic, []event{{tag: cleared}}}}
	blocks := 0
	all(func(s *scope, events []event) {
		for _, v := range events {
			last := &parts[len(parts)-1]
			if last.topic != s.topic || blocks >= batchBlocks {
				parts = append(parts, part{topic: s.topic})
				last, blocks = &parts[len(parts)-1], 0
			}
			last.events = append(last.events, v)
			blocks += len(v.hashes)
		}
	})
	free, n := j.first()-from, uint64(len(parts))
	list := make([]*message, 0, len(parts)+len(j.kept))
	for i := range parts {
		seq := j.first() - n + uint64(i)
		if n > free {
			seq = from + uint64(i)*free/n
		}
		list = append(list, j.encode(parts[i].topic, seq, parts[i].events))
	}
	return append(list, j.kept...)
}
