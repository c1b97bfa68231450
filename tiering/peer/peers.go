package peer

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/peer/index"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Node is the number of a cluster member on this node.
type Node = index.Node

// Index reports which members are believed to have an object, like index.Index.
type Index interface {
	// Prefetch makes the processor load into its cache the memory that Holders will read.
	Prefetch(tags []uint64)
	// Holders fills dst with the members believed to have the object with a tag, and
	// returns their number, which may exceed len(dst). It takes no lock, never waits and
	// allocates nothing.
	Holders(tag uint64, dst []Node) int
}

var _ Index = (*index.Index)(nil)

// Config configures Peers. Fields marked "required" must be set. Any other field that is
// zero takes the default that its comment states.
type Config struct {
	Index  Index         // required
	Names  *Names        // required
	Device gpuipc.Device // device of the destination memory; required
	// Profile finds a registered profile; objects of other profiles are not found.
	// Required.
	Profile func(profile.Fingerprint) (*profile.Profile, bool)
	// Learning reports whether the Index does not yet know the objects of all members;
	// nil = it always knows them.
	Learning func() bool
	// Insecure allows members without TLS: anyone with access to the network between them
	// can read and modify the traffic.
	Insecure bool

	// Streams is the number of concurrent ranges per member, each on a separate connection;
	// default 4. RangeBytes is the length of a range, up to one chunk more; default 4 MiB.
	// Their product limits the bytes requested from a member at once.
	Streams    int
	RangeBytes int64
	MaxReads   int // most copies from one member that are being read or wait to be; default 64
	MaxIdle    int // most idle connections per member; default twice Streams
	Candidates int // maximum members asked for an object; default 4

	DialTime time.Duration // timeout for opening a connection, including the TLS handshake; default 2 seconds
	FindTime time.Duration // timeout of a find; longer than the server's PromoteTime; default 5 seconds
	// If a find is unanswered for SilentTime, its member is probed. If the probe is
	// unanswered for SilentTime too, the member counts as silent. The default is 500 ms.
	SilentTime time.Duration
	StallTime  time.Duration // longest time without receiving a requested byte; default 5 seconds
	// MinBytesPerSecond is the minimum rate of a range: the range fails if it takes longer
	// than StallTime plus the time for its length at this rate. The default is 256 KiB per
	// second.
	MinBytesPerSecond int64

	BreakerFailures        int           // failures in a row after which a member is not asked for a while; default 3
	BreakerMin, BreakerMax time.Duration // how long it is not asked: first BreakerMin, then doubled each time up to BreakerMax; default 1 and 30 seconds
	SuspectTime            time.Duration // how long a member is not asked for an object that it sent wrong; default 1 minute

	Now func() time.Time // clock; default time.Now
	Log zerolog.Logger
}

func (c Config) withDefaults() Config {
	setDefault(&c.Streams, 4)
	setDefault(&c.RangeBytes, 4<<20)
	setDefault(&c.MaxReads, 64)
	setDefault(&c.MaxIdle, 2*c.Streams)
	setDefault(&c.Candidates, 4)
	setDefault(&c.DialTime, 2*time.Second)
	setDefault(&c.FindTime, 5*time.Second)
	setDefault(&c.SilentTime, 500*time.Millisecond)
	setDefault(&c.StallTime, 5*time.Second)
	setDefault(&c.MinBytesPerSecond, 256<<10)
	setDefault(&c.BreakerFailures, 3)
	setDefault(&c.BreakerMin, time.Second)
	setDefault(&c.BreakerMax, max(30*time.Second, c.BreakerMin))
	setDefault(&c.SuspectTime, time.Minute)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (c *Config) validate() error {
	switch {
	case c.Index == nil || c.Names == nil || c.Device == nil || c.Profile == nil:
		return fmt.Errorf("peer: no index, names, device or profiles: %w", tier.ErrInvalid)
	case c.Streams < 0 || c.MaxReads < 0 || c.MaxIdle < 0 || c.Candidates < 0 || c.BreakerFailures < 0 || c.MinBytesPerSecond < 0:
		return fmt.Errorf("peer: a bound is negative: %w", tier.ErrInvalid)
	case c.RangeBytes < 0 || c.RangeBytes > maxRange-gpuipc.ChunkBytes:
		return fmt.Errorf("peer: ranges of %d bytes, at most %d: %w", c.RangeBytes, maxRange-gpuipc.ChunkBytes, tier.ErrInvalid)
	case c.DialTime < 0 || c.FindTime < 0 || c.SilentTime < 0 || c.StallTime < 0 || c.SuspectTime < 0 || c.BreakerMin < 0 || c.BreakerMin > c.BreakerMax:
		return fmt.Errorf("peer: a time is negative: %w", tier.ErrInvalid)
	}
	return nil
}

// Peers is a tier.Remote over the members of a cluster.
type Peers struct {
	cfg     Config
	counts  counts
	bad     suspects
	learnt  learnt
	begun   atomic.Uint64 // number of copies read
	scratch sync.Pool     // of *[maxHolders]Node

	table atomic.Pointer[[]*member] // by number, nil = none; replaced under mu, never modified
	mu    sync.Mutex
}

var _ tier.Remote = (*Peers)(nil)

// New returns Peers without members. It starts nothing.
func New(cfg Config) (*Peers, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Peers{cfg: cfg}
	p.counts.duration = newDuration()
	p.scratch.New = func() any { return new([maxHolders]Node) }
	p.table.Store(&[]*member{})
	return p, nil
}

// Member is the address of a node.
type Member struct {
	Node Node
	Addr string // host:port
	// TLS configures connections to the member, including its name; it must not be
	// modified. nil means plain TCP, which requires Config.Insecure.
	TLS *tls.Config
}

// Set adds a member, or replaces the member of the same number and resets its state.
func (p *Peers) Set(m Member) error {
	if m.TLS == nil && !p.cfg.Insecure {
		return fmt.Errorf("peer: node %d at %s without TLS: %w", m.Node, m.Addr, tier.ErrInvalid)
	}
	if m.Node >= index.MaxNodes || m.Addr == "" {
		return fmt.Errorf("peer: node %d at %q: %w", m.Node, m.Addr, tier.ErrInvalid)
	}
	p.replace(m.Node, newMember(&p.cfg, m))
	return nil
}

// Remove removes a member. Running reads from it may fail.
func (p *Peers) Remove(n Node) { p.replace(n, nil) }

func (p *Peers) replace(n Node, m *member) {
	p.mu.Lock()
	next := slices.Clone(*p.table.Load())
	if int(n) >= len(next) {
		next = append(next, make([]*member, int(n)+1-len(next))...)
	}
	old := next[n]
	next[n] = m
	p.table.Store(&next)
	p.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// Close removes all members and closes their idle connections. Calls of Find and Read that
// are still running may fail.
func (p *Peers) Close() {
	p.mu.Lock()
	old := *p.table.Load()
	p.table.Store(&[]*member{})
	p.mu.Unlock()
	for _, m := range old {
		if m != nil {
			m.close()
		}
	}
}

func (p *Peers) member(n Node) *member {
	if table := *p.table.Load(); int(n) < len(table) {
		return table[n]
	}
	return nil
}

// maxHolders is the most holders of an object that are considered.
const maxHolders = 8

// Holders of an object are compared as if its size were assumedBytes, since the size is
// not known. assumedRate is the rate in bytes per second of a member that is not measured
// yet. Both are guesses.
const (
	assumedBytes = 1 << 20
	assumedRate  = 100e6
)

// holders appends to dst, up to its capacity, the holders of the object with a tag: first
// those that other nodes have reported, then those in the index.
func (p *Peers) holders(tag uint64, now time.Time, dst []Node) []Node {
	dst = p.learnt.holders(tag, dst, now)
	told := len(dst)
	rest := dst[told:cap(dst)]
	for _, node := range rest[:min(p.cfg.Index.Holders(tag, rest), len(rest))] {
		if !slices.Contains(dst[:told], node) {
			dst = append(dst, node)
		}
	}
	return dst
}

// Holders fills dst with members that are believed to have an object, and returns their
// number, at most len(dst). w may also be a name that the function Workers returns, because
// members publish such names in the index like objects.
func (p *Peers) Holders(w *tier.Want, dst []Node) int {
	tag, ok := p.cfg.Names.Tag(w)
	if !ok {
		return 0
	}
	return len(p.holders(tag, p.cfg.Now(), dst[:0:len(dst)]))
}

// eachHolder calls f with the members that may be asked for an object now.
func (p *Peers) eachHolder(tag uint64, now time.Time, f func(*member)) {
	holders := p.scratch.Get().(*[maxHolders]Node) // pooled, since it escapes through an interface
	defer p.scratch.Put(holders)
	for _, node := range p.holders(tag, now, holders[:0]) {
		if m := p.member(node); m != nil && m.open(now) && !p.bad.is(node, tag, now) {
			f(m)
		}
	}
}

var _ tier.Preparer = (*Peers)(nil)

// Prepare implements tier.Preparer: marks are tags.
func (p *Peers) Prepare(wants []tier.Want) {
	var tags [64]uint64
	for i := range wants {
		wants[i].Mark, _ = p.cfg.Names.Tag(&wants[i])
		tags[i%len(tags)] = wants[i].Mark
		if n := i%len(tags) + 1; n == len(tags) || i == len(wants)-1 {
			p.cfg.Index.Prefetch(tags[:n])
		}
	}
}

// Hint implements tier.Remote.
func (p *Peers) Hint(w *tier.Want) (tier.Hint, bool) {
	tag, ok := w.Mark, true
	if tag == 0 {
		tag, ok = p.cfg.Names.Tag(w)
	}
	if !ok {
		return tier.Hint{}, false
	}
	var best tier.Hint
	found, least := false, 0.0
	p.eachHolder(tag, p.cfg.Now(), func(m *member) {
		if h, seconds := m.expect(); !found || seconds < least {
			best, found, least = h, true, seconds
		}
	})
	return best, found
}

// candidates lists up to Config.Candidates members to ask for an object, fastest first.
func (p *Peers) candidates(tag uint64, now time.Time) (list []*member) {
	type ranked struct {
		*member
		seconds float64
	}
	var all []ranked
	p.eachHolder(tag, now, func(m *member) {
		_, seconds := m.expect()
		all = append(all, ranked{m, seconds})
	})
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.seconds, b.seconds) })
	for _, r := range all[:min(len(all), p.cfg.Candidates)] {
		list = append(list, r.member)
	}
	return list
}

// suspects records for which objects a member is not asked for a while, after it sent
// wrong bytes or failed.
type suspects struct {
	n     atomic.Int64
	mu    sync.Mutex
	at    map[suspect]time.Time // time when each expires; at most maxSuspects
	swept time.Time             // last time when expired entries were removed
}

type suspect struct {
	node Node
	tag  uint64
}

// maxSuspects is the most suspects. When it is reached, half of them are dropped at random.
const maxSuspects = 4096

func (s *suspects) add(node Node, tag uint64, until, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[suspect]time.Time{}
	}
	if full := len(s.at) >= maxSuspects; full || now.Sub(s.swept) >= time.Second {
		s.swept = now
		for k, t := range s.at {
			if !now.Before(t) || full && len(s.at) > maxSuspects/2 {
				delete(s.at, k)
			}
		}
	}
	s.at[suspect{node, tag}] = until
	s.n.Store(int64(len(s.at)))
}

func (s *suspects) is(node Node, tag uint64, now time.Time) bool {
	if s.n.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.at[suspect{node, tag}]
	return ok && now.Before(until)
}
