package events

import "slices"

// snapshot holds AllBlocksCleared and all published blocks at one moment, for one subscriber
// or asker. It refers to blocks, and its messages are made one by one as they are sent, so that
// those who read slowly cost little memory. It does not change.
type snapshot struct {
	format  Format
	seconds float64
	block   int // tokens
	first   uint64
	cleared string // topic of the first message
	parts   []part
}

// part is a message: runs of one topic.
type part struct {
	topic string
	runs  []run
}

// snapshot returns the blocks that are published now under the wanted topics. Its last number
// is that of the last batch, so that the next one follows it.
//
// It begins with two clears, the second in front of the first blocks. Subscribers drop a
// message whose number they had last, as a number before the present is likely to be for one
// that was connected a moment ago, but then not the next one.
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

// partsOf divides runs among messages. It never returns nil.
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

// len counts the messages.
func (s *snapshot) len() int { return 1 + len(s.parts) }

// message makes one of them.
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
