package events

import "slices"

// snapshot is AllBlocksCleared and all blocks published at one moment, for one subscriber or
// replay. Its messages are built when they are sent, so that a slow reader takes little memory. It
// is immutable.
type snapshot struct {
	format  Format
	seconds float64
	block   int // tokens per block
	first   uint64
	cleared string // topic of the first message
	parts   []part
}

// part is the content of one message: runs of one topic.
type part struct {
	topic string
	runs  []run
}

// snapshot returns the blocks of the wanted topics that are published now. Its last sequence number
// is the number of the latest batch, so that the next batch follows it.
//
// A snapshot begins with two clears, and the second one precedes the first blocks. The reason is
// that subscribers drop a message whose number equals the last number they saw. A subscriber that
// was connected a moment ago may have seen the number of the first clear before. It then drops that
// clear, but not the second one.
func (p *Publisher) snapshot(cleared string, wants func(topic []byte) bool) *snapshot {
	if p.parts == nil {
		p.parts = partsOf(p.told.runs())
	}
	s := &snapshot{format: p.cfg.Format, seconds: p.log.seconds(), block: p.cfg.BlockTokens, cleared: cleared, parts: p.parts}
	unwanted := func(of part) bool { return !wants([]byte(of.topic)) }
	if slices.ContainsFunc(s.parts, unwanted) {
		s.parts = slices.DeleteFunc(slices.Clone(s.parts), unwanted)
	}
	s.first = p.log.next - uint64(s.len())
	return s
}

// partsOf distributes runs over messages. Its result is not nil.
func partsOf(runs []run) []part {
	slices.SortStableFunc(runs, func(a, b run) int { return int(a.scope.number) - int(b.scope.number) })
	parts, blocks := []part{}, batchBlocks
	for _, r := range runs {
		if n := len(parts); n == 0 || blocks >= batchBlocks || parts[n-1].topic != r.scope.topic {
			parts, blocks = append(parts, part{topic: r.scope.topic}), 0
		}
		last := &parts[len(parts)-1]
		last.runs = append(last.runs, r)
		blocks += max(1, len(r.blocks))
	}
	return parts
}

// len returns the number of messages.
func (s *snapshot) len() int { return 1 + len(s.parts) }

// message builds the message with index i.
func (s *snapshot) message(i int) *message {
	seq := s.first + uint64(i)
	if i == 0 {
		return newMessage(s.format, s.seconds, s.cleared, seq, []event{{tag: cleared}})
	}
	var events []event
	if i == 1 {
		events = append(events, event{tag: cleared})
	}
	for _, r := range s.parts[i-1].runs {
		events = append(events, r.events(s.block)...)
	}
	return newMessage(s.format, s.seconds, s.parts[i-1].topic, seq, events)
}
