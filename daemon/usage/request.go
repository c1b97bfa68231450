package usage

import (
	"encoding/hex"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// From is the source of a span's tokens.
type From uint8

const (
	Engine     From = iota // the engine's own cache
	Checkpoint             // a prefix from the daemon
	Segment                // a segment from the daemon, composed or rotated
	Computed               // computed by the engine
	Froms      = int(iota)
)

// String returns the name of the source in listings and series.
func (f From) String() string { return [...]string{"engine", "prefix", "segment", "computed"}[f] }

// Span is the tokens [Begin, End) of a prompt.
type Span struct {
	Begin, End uint32
	Key        [32]byte // of the segment that contains the tokens; zero = none
	From       From
	Cause      Cause      // of computed tokens
	Place      tier.Place // tier of the tokens, also of computed ones that were found
}

// Request records how one prompt was served.
type Request struct {
	Number  uint64
	At      time.Time // when it was reported
	Who     Who
	Name    string // the engine's own
	Parent  Parent // the engine's span; zero = it has none
	Way     uint8  // a wire.Way
	Tokens  uint32
	Sources [Froms]uint64 // tokens by source
	Seam    uint64        // computed tokens that are seams
	Prefix  tier.Place
	Reason  tier.Reason // why no longer prefix was used
	Bytes   uint64
	Match   time.Duration // until the way to serve it was chosen
	Wait    time.Duration // waiting for bytes
	First   time.Duration // to the first token; 0 = not reported
	Saved   float64       // milliseconds, an estimate
	By      By            // basis of the estimate
	Ways    []float64     // predicted milliseconds of each way, at index wire.Way minus one
	Loss    float64       // expected share of changed first tokens of its way; negative = unknown
	Spans   []Span        // ascending, covering the prompt
	// Unverified is set if lookups of the connection do not cover the reported reuse.
	Unverified bool
}

// Who identifies the sender of a request.
type Who struct {
	Key
	Profile tier.ProfileID
	Model   string
	Client  string
	Source  uint64 // its process; measurements of its connections count as one vote
}

// read validates a report of an engine. One that contradicts itself is invalid.
func read(m *wire.ServedRequest) (*Request, error) {
	if m.Way < wire.WayRecompute || m.Way > wire.WayReplay {
		return nil, codes.Refuse(wire.Invalid, "way %d", m.Way)
	}
	if m.Tokens == 0 || m.Tokens > profile.MaxTokens {
		return nil, codes.Refuse(wire.Invalid, "tokens: a prompt of %d tokens, at most %d", m.Tokens, profile.MaxTokens)
	}
	if m.PrefixReason > wire.ReasonOff || m.PrefixTier > wire.TierPeer {
		return nil, codes.Refuse(wire.Invalid, "prefix in tier %d, reason %d", m.PrefixTier, m.PrefixReason)
	}
	for _, v := range m.WayMicros {
		if math.IsNaN(v) || v < 0 {
			return nil, codes.Refuse(wire.Invalid, "way micros: a way predicted to take %v", v)
		}
	}
	loss := -1.0
	if m.Loss.Present && m.Loss.Expected >= 0 {
		loss = m.Loss.Expected
	}
	if math.IsNaN(m.Loss.Expected) || loss > 1 {
		return nil, codes.Refuse(wire.Invalid, "loss: %v expected, want at most 1", m.Loss.Expected)
	}
	parent, err := parentOf(m.Trace)
	if err != nil {
		return nil, err
	}
	r := &Request{
		Name: plain(m.Request), Parent: parent, Way: m.Way, Tokens: m.Tokens, Prefix: tier.Place(m.PrefixTier),
		Reason: reasonOf(m.PrefixReason), Bytes: m.ReadBytes, Match: micros(m.MatchMicros), Wait: micros(m.WaitMicros), First: micros(m.FirstMicros), Loss: loss,
	}
	for _, v := range m.WayMicros {
		r.Ways = append(r.Ways, v/1e3)
	}
	if err := r.cover(m); err != nil {
		return nil, err
	}
	for i := range r.Spans {
		s := &r.Spans[i]
		n := uint64(s.End - s.Begin)
		r.Sources[s.From] += n
		if s.From == Computed && s.Cause == Seam {
			r.Seam += n
		}
	}
	return r, nil
}

// cover sets the spans, which cover the prompt.
func (r *Request) cover(m *wire.ServedRequest) error {
	behind := uint64(m.Engine) + uint64(m.Prefix)
	if behind > uint64(m.Tokens) {
		return codes.Refuse(wire.Invalid, "engine, prefix: %d tokens of the engine's and %d of a prefix in a prompt of %d", m.Engine, m.Prefix, m.Tokens)
	}
	r.Spans = make([]Span, 0, 3+3*len(m.Begins))
	c := cover{&r.Spans, 0}
	c.to(m.Engine, Span{From: Engine})
	c.to(uint32(behind), Span{From: Checkpoint, Place: r.Prefix})
	between := Span{From: Computed, Cause: Cause(m.PrefixReason)}
	if between.Cause == Unasked && m.Prefix == 0 && m.PrefixTier != wire.TierNone {
		between.Cause = Declined
	}
	last := uint64(0) // end of the previous row
	for i, begin := range m.Begins {
		end := uint64(begin) + uint64(m.Counts[i])
		if uint64(begin) < last || end > uint64(m.Tokens) || m.Counts[i] == 0 {
			return codes.Refuse(wire.Invalid, "row %d: tokens [%d, %d) after token %d of %d", i, begin, end, last, m.Tokens)
		}
		if m.Reasons[i] > wire.ReasonOff || m.Tiers[i] > wire.TierPeer {
			return codes.Refuse(wire.Invalid, "row %d: tier %d, reason %d", i, m.Tiers[i], m.Reasons[i])
		}
		last = end
		c.to(begin, between)
		row := Span{From: Computed, Key: m.Keys[i], Place: tier.Place(m.Tiers[i]), Cause: Cause(m.Reasons[i])}
		if row.Cause == Unasked && m.Tiers[i] != wire.TierNone {
			row.Cause = Declined
		}
		if m.Reused[i] > 0 {
			at := uint64(m.At[i])
			if at < max(behind, uint64(begin)) || at+uint64(m.Reused[i]) > end {
				return codes.Refuse(wire.Invalid, "row %d: %d tokens from %d on are not in [%d, %d) after a prefix of %d", i, m.Reused[i], at, begin, end, behind)
			}
			row.Cause = Seam
			c.to(m.At[i], row)
			c.to(m.At[i]+m.Reused[i], Span{From: Segment, Key: row.Key, Place: row.Place})
		}
		c.to(uint32(end), row)
	}
	c.to(m.Tokens, between)
	return nil
}

// cover appends spans, each starting at the end of the previous one.
type cover struct {
	spans *[]Span
	at    uint32
}

// to appends a span up to end, if it is not empty.
func (c *cover) to(end uint32, s Span) {
	if end <= c.at {
		return
	}
	s.Begin, s.End = c.at, end
	*c.spans = append(*c.spans, s)
	c.at = end
}

// reasonOf returns a match's reason. The store has none for a switched-off profile.
func reasonOf(r uint8) tier.Reason {
	if r >= tier.Reasons {
		return tier.ReasonNone
	}
	return tier.Reason(r)
}

func micros(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

// Parent identifies the engine's span of a request, like a W3C Trace Context traceparent.
type Parent struct {
	Trace [16]byte
	Span  [8]byte
	Flags byte
}

// IsValid reports whether trace and span are set.
func (p *Parent) IsValid() bool { return p.Trace != [16]byte{} && p.Span != [8]byte{} }

// TraceID returns the trace id in 32 hex digits, "" if there is none.
func (p *Parent) TraceID() string {
	if !p.IsValid() {
		return ""
	}
	return hex.EncodeToString(p.Trace[:])
}

// parentOf parses a traceparent; "" gives the zero Parent. Versions above 00 may have more
// fields after the flags.
func parentOf(text string) (p Parent, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.Split(text, "-")
	ok := len(parts) >= 4 && text == strings.ToLower(text) && parts[0] != "ff" && (parts[0] != "00" || len(parts) == 4)
	if ok {
		var version, flags [1]byte
		for i, to := range [][]byte{version[:], p.Trace[:], p.Span[:], flags[:]} {
			ok = ok && len(parts[i]) == 2*len(to)
			if ok {
				_, err := hex.Decode(to, []byte(parts[i]))
				ok = err == nil
			}
		}
		p.Flags = flags[0]
	}
	if !ok || !p.IsValid() {
		return Parent{}, codes.Refuse(wire.Invalid, "traceparent %.80q", text)
	}
	return p, nil
}

// plain replaces unprintable characters of a client's text, such as terminal controls.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
