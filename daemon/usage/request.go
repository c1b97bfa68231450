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

// From is the source of tokens.
type From uint8

const (
	Engine     From = iota // from the engine's own cache
	Checkpoint             // from a prefix of the daemon
	Segment                // from a segment of the daemon, composed or rotated
	Computed               // computed by the engine
	Froms      = int(iota)
)

// String returns the name of the source in listings and series.
func (f From) String() string { return [...]string{"engine", "prefix", "segment", "computed"}[f] }

// Span is a range [Begin, End) of a prompt's tokens with one source.
type Span struct {
	Begin, End uint32
	Key        [32]byte // key of the segment that contains the tokens; zero = no segment
	From       From
	Cause      Cause      // why the tokens were computed, if they were
	Place      tier.Place // tier in which the tokens were found, even if they were computed
}

// Request records how one prompt was served.
type Request struct {
	Number  uint64
	At      time.Time // when it was reported
	Who     Who
	Name    string // the engine's name of the request
	Parent  Parent // the engine's span; zero = it has none
	Way     uint8  // a wire.Way
	Tokens  uint32
	Sources [Froms]uint64 // tokens by source
	Seam    uint64        // computed tokens that are seams
	Prefix  tier.Place
	Reason  tier.Reason // why no longer prefix was used
	Bytes   uint64
	Match   time.Duration // time until the way to serve it was chosen
	Wait    time.Duration // time of waiting for bytes
	First   time.Duration // time to the first token; 0 = not reported
	Saved   float64       // estimated time saved in milliseconds
	By      By            // basis of the estimate
	Ways    []float64     // predicted milliseconds of each way; index wire.Way - 1
	Loss    float64       // expected share of requests whose first token changes, for the way used; negative = unknown
	Spans   []Span        // ascending; they cover the whole prompt
	// Unverified means that lookups of the connection do not cover the reuse in the report.
	Unverified bool
}

// Who identifies the sender of a request.
type Who struct {
	Key
	Profile tier.ProfileID
	Model   string
	Client  string
	Source  uint64 // process of the client; all measurements of one process count as one vote
}

// read validates an engine's report. A report that contradicts itself is invalid.
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

// cover sets the spans, which cover the whole prompt.
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
	last := uint64(0) // end of the previous row of the report
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

// cover appends spans. Each span begins where the previous one ends.
type cover struct {
	spans *[]Span
	at    uint32
}

// to appends a span that ends before the token with the index end, unless that span is empty.
func (c *cover) to(end uint32, s Span) {
	if end <= c.at {
		return
	}
	s.Begin, s.End = c.at, end
	*c.spans = append(*c.spans, s)
	c.at = end
}

// reasonOf converts a reason that a match reported to the store's type. A match also reports that a
// profile is switched off, for which the store has no reason.
func reasonOf(r uint8) tier.Reason {
	if r >= tier.Reasons {
		return tier.ReasonNone
	}
	return tier.Reason(r)
}

func micros(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

// Parent identifies the engine's span of a request, as a W3C traceparent does.
type Parent struct {
	Trace [16]byte
	Span  [8]byte
	Flags byte
}

// IsValid reports whether trace and span are set.
func (p *Parent) IsValid() bool { return p.Trace != [16]byte{} && p.Span != [8]byte{} }

// TraceID returns the trace id as 32 hex digits; "" = there is none.
func (p *Parent) TraceID() string {
	if !p.IsValid() {
		return ""
	}
	return hex.EncodeToString(p.Trace[:])
}

// parentOf parses a traceparent. For "" it returns a zero Parent. In versions above 00, more fields
// may follow the flags.
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

// plain replaces characters of a client's text that are not printable, such as terminal controls.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
