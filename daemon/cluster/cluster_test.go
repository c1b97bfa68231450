package cluster

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestNodesFindEachOtherAndTellThatTheyLeave(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil) // nobody is there
	c := b.start("c", []string{a.address()}, nil)
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "all know all", func() bool { return a.knows("c", "d") && c.knows("a", "d") && d.knows("a", "c") })
	eventually(t, "members have been pinged", func() bool {
		m, _ := d.member("c")
		return m.RTT > 0
	})
	m, _ := d.member("c")
	want := c.Members()[0]
	if m.Gossip != want.Gossip || m.Peer != want.Peer || m.Peer.Port() == 0 || m.Version != "1.2.3" || m.Incarnation != c.Incarnation() ||
		m.State != Alive || !m.Told || m.Plain || m.ClockAhead.Abs() > time.Minute || time.Since(m.Started) > time.Minute {
		t.Errorf("d knows of c %+v, of itself it says %+v", m, want)
	}
	if list := d.Members(); len(list) != 3 || !list[0].Self || list[0].Name != "d" || list[1].Name != "a" {
		t.Errorf("%+v", list)
	}
	hold(time.Hour, a, c)
	begun := time.Now()
	d.stop()
	eventually(t, "d is gone at once, as it said so", func() bool { return a.knows("c") && c.knows("a") })
	t.Logf("left in %v", time.Since(begun))
	eventually(t, "it is listed as left", func() bool { m, _ := a.member("d"); return m.State == Left && !a.log.has("a member failed") })
	if s := a.Status(); !s.Encrypted || s.FilesError != "" || s.Certificate.Before(time.Now()) || s.Join.At.IsZero() || len(s.Join.Errors) == 0 {
		t.Errorf("%+v", s)
	}
}

func TestANodeThatDiesIsHeldForAWhile(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "both are there", func() bool { return a.knows("d") && d.knows("a") })
	const held = 5 * time.Second
	hold(held, a)
	d.kill()
	var seen time.Time
	eventually(t, "d is missed", func() bool {
		m, ok := a.member("d")
		seen = m.Since
		return ok && m.State == Unreachable
	})
	if !a.knows("d") {
		t.Error("it was told to have left before it was held")
	}
	eventually(t, "d is gone", func() bool { return a.knows() })
	if got := time.Since(seen); got < held {
		t.Errorf("held for %v", got)
	}
	if m, _ := a.member("d"); m.State != Failed || m.Told || m.Seen.IsZero() || m.Seen.After(seen) {
		t.Errorf("it is listed as %+v", m)
	}
	eventually(t, "its failure is in the log", func() bool { return a.log.has("a member failed") })
}

func TestAMemberThatFlapsIsNotToldOf(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "both are there", func() bool { return a.knows("d") && d.knows("a") })
	hold(time.Hour, a, d)
	b.dropped.Store(d.address(), true)
	state := func(n *node, name string) State {
		m, _ := n.member(name)
		return m.State
	}
	eventually(t, "each misses the other", func() bool { return state(a, "d") == Unreachable && state(d, "a") == Unreachable })
	b.dropped.Delete(d.address())
	eventually(t, "each has the other back", func() bool { return state(a, "d") == Alive && state(d, "a") == Alive })
	if a.told() != "+d" || d.told() != "+a" {
		t.Errorf("a was told %q, d %q", a.told(), d.told())
	}
	if s := a.Status(); s.Flaps == 0 {
		t.Error("it was not counted")
	}
}

// Neither side's seeds name the other: what heals the cut is that members are not forgotten.
func TestACutHeals(t *testing.T) {
	b := newBed(t)
	seed := b.start("seed", []string{"127.0.0.1:1"}, nil)
	a := b.start("a", []string{seed.address()}, nil)
	d := b.start("d", []string{seed.address()}, nil)
	eventually(t, "all are there", func() bool { return a.knows("seed", "d") && d.knows("seed", "a") })
	hold(100*time.Millisecond, a, d, seed)
	b.dropped.Store(d.address(), true)
	eventually(t, "d is cut off", func() bool { return a.knows("seed") && d.knows() })
	seed.stop() // for ever: nobody has a seed that answers
	eventually(t, "a is alone", func() bool { return a.knows() })
	b.dropped.Delete(d.address())
	begun := time.Now()
	eventually(t, "they have found each other", func() bool { return a.knows("d") && d.knows("a") })
	t.Logf("healed in %v, with attempts every %v", time.Since(begun), a.cfg.Timing.Rejoin)
}

func TestANodeThatRestartsInPlaceIsAnotherOne(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "both are there", func() bool { return a.knows("d") && d.knows("a") })
	where := netip.MustParseAddrPort(d.address())
	d.kill()
	b.dropped.Delete(d.address())
	again := b.start("d", []string{a.address()}, func(c *Config) { c.Bind = where })
	eventually(t, "the new one is worked with", func() bool {
		m, _ := a.member("d")
		return m.Incarnation == again.Incarnation() && m.Told && again.knows("a")
	})
	eventually(t, "the former one was told to have left", func() bool { return a.told() == "+d -d +d" })
}

func TestWhoIsNotLetIn(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	for name, row := range map[string]struct {
		change func(*Config)
		why    string
	}{
		"another key":     {func(c *Config) { c.Keyring = b.file("other", []byte(ringText(keyOf('x')))) }, "its key is not in this node's keyring"},
		"another cluster": {func(c *Config) { c.Name = "other" }, "the names differ"},
		"no key":          {func(c *Config) { c.Keyring, c.Insecure = "", true }, "not encrypted"},
	} {
		t.Run(name, func(t *testing.T) {
			d := b.start("d", []string{a.address()}, row.change)
			eventually(t, "d has tried, and says why it failed", func() bool {
				s := d.Status().Join
				return s.Tried == 1 && len(s.Errors) == 1 && strings.Contains(s.Errors[0], "without an answer: its keyring or cluster name differs")
			})
			eventually(t, "a says why", func() bool {
				r := a.Status().Streams.Rejected
				return len(r) == 1 && r[0].Address == loopback.Addr() && strings.Contains(r[0].Why, row.why) && r[0].Times > 0
			})
			if len(d.Members()) != 1 || len(a.Members()) != 1 {
				t.Errorf("d knows %+v, a %+v", d.Members(), a.Members())
			}
			t.Logf("d says: %v", d.Status().Join.Errors)
			d.stop()
		})
	}
	good := b.start("e", []string{a.address()}, nil)
	eventually(t, "one with the key is let in", func() bool { return a.knows("e") && good.knows("a") })
}

func TestKeysAreRotatedWhileNodesRun(t *testing.T) {
	b := newBed(t)
	names, before, after := []string{"a", "c", "d"}, keyOf('a'), keyOf('b')
	nodes, paths := []*node{}, map[string]string{}
	for i, name := range names {
		paths[name] = b.file(name+".keys", []byte(ringText(before)))
		seeds := []string{"127.0.0.1:1"}
		if i > 0 {
			seeds = []string{nodes[0].address()}
		}
		nodes = append(nodes, b.start(name, seeds, func(c *Config) { c.Keyring = paths[name] }))
	}
	whole := func() bool {
		return nodes[0].knows("c", "d") && nodes[1].knows("a", "d") && nodes[2].knows("a", "c")
	}
	eventually(t, "all are there", whole)
	secret := nodes[0].Secret()
	// One node after another, so that rings differ in between.
	for step, keys := range [][][]byte{{before, after}, {after, before}, {after}} {
		for i, name := range names {
			b.file(name+".keys", []byte(ringText(keys...)))
			eventually(t, "the file is in use", func() bool { return nodes[i].Status().Reloads == uint64(step+1) })
		}
	}
	late := b.start("late", []string{nodes[0].address()}, func(c *Config) { c.Keyring = b.file("late.keys", []byte(ringText(after))) })
	eventually(t, "one with the new key alone is a member", func() bool { _, ok := nodes[2].member("late"); return ok })
	// It was started after the rotation, so its secret is of the new key.
	if m, _ := nodes[2].member("late"); !strings.Contains(m.Unusable, "cluster-secret") || m.Told {
		t.Errorf("%+v", m)
	}
	old := b.start("old", []string{nodes[0].address()}, func(c *Config) { c.Keyring = b.file("old.keys", []byte(ringText(before))) })
	eventually(t, "one with the old key has tried", func() bool { return len(old.Status().Join.Errors) > 0 })
	if len(old.Members()) != 1 {
		t.Errorf("and was let in: %+v", old.Members())
	}
	for _, n := range nodes {
		if n.Secret() != secret || !n.knows(others(names, n.cfg.Node)...) {
			t.Errorf("%s: secret changed %v, told %q", n.cfg.Node, n.Secret() != secret, n.told())
		}
	}
	late.stop()
}

func others(names []string, not string) (list []string) {
	for _, name := range names {
		if name != not {
			list = append(list, name)
		}
	}
	return list
}

func TestASecretOfAFileOutlivesKeys(t *testing.T) {
	b := newBed(t)
	secret := b.file("secret", []byte("sixteen bytes or more\n"))
	a := b.start("a", []string{"127.0.0.1:1"}, func(c *Config) {
		c.Keyring, c.SecretFile = b.file("a.keys", []byte(ringText(keyOf('a'), keyOf('b')))), secret
	})
	d := b.start("d", []string{a.address()}, func(c *Config) {
		c.Keyring, c.SecretFile = b.file("d.keys", []byte(ringText(keyOf('b'), keyOf('a')))), secret
	})
	eventually(t, "they work together", func() bool { return a.knows("d") && d.knows("a") })
}

func TestABadKeyringChangesNothing(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	b.file("keys", []byte("this is no key\n"))
	eventually(t, "it says so", func() bool { return strings.Contains(a.Status().FilesError, "not base64") })
	eventually(t, "it is in the log", func() bool { return a.log.has("the previous ones stay in use") })
	d := b.start("d", []string{a.address()}, func(c *Config) { c.Keyring = b.file("good", []byte(ringText(keyOf('a')))) })
	eventually(t, "who has the former key is let in", func() bool { return a.knows("d") && d.knows("a") })
	b.file("keys", []byte(ringText(keyOf('a'), keyOf('b'))))
	eventually(t, "a good one is taken", func() bool { s := a.Status(); return s.FilesError == "" && s.Reloads == 1 })
}

func TestSeedsAreResolvedAgainAndAgain(t *testing.T) {
	b := newBed(t)
	dns := &resolver{}
	a := b.start("a", []string{"peers.example"}, func(c *Config) { c.Resolver = dns })
	eventually(t, "a name that is not there is asked for again", func() bool { return dns.asked.Load() >= 3 })
	if s := a.Status().Join; len(s.Errors) != 1 || !strings.Contains(s.Errors[0], "peers.example") {
		t.Errorf("%+v", s)
	}
	dns.names.Store("peers.example", []netip.Addr(nil)) // a headless service without pods
	asked := dns.asked.Load()
	eventually(t, "a name without addresses is asked for again", func() bool { return dns.asked.Load() >= asked+2 })
	port := netip.MustParseAddrPort(a.address()).Port()
	dns.names.Store("peers.example", []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::ffff:127.0.0.1")})
	d := b.start("d", []string{"peers.example:" + strconv.Itoa(int(port))}, func(c *Config) { c.Resolver = dns })
	eventually(t, "they find each other", func() bool { return a.knows("d") && d.knows("a") })
	asked = dns.asked.Load()
	eventually(t, "members go on asking", func() bool { return dns.asked.Load() >= asked+2 })
	eventually(t, "a joins neither itself nor who is there already", func() bool {
		s := a.Status().Join
		return s.Tried == 0 && len(s.Errors) == 0
	})
}

func TestAnotherProtocolIsAMemberThatIsNotWorkedWith(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "both are there", func() bool { return a.knows("d") && d.knows("a") })
	next := *d.gossip.meta.Load()
	next.Protocol++
	d.gossip.meta.Store(&next)
	_ = d.list.UpdateNode(time.Second) // its notice that the update was sent may be lost
	eventually(t, "a has stopped working with d", func() bool {
		m, ok := a.member("d")
		return a.knows() && ok && m.State == Alive && strings.Contains(m.Unusable, "protocol 2")
	})
}

func TestTwoNodesOfOneNameAreSeen(t *testing.T) {
	b := newBed(t)
	a := b.start("a", []string{"127.0.0.1:1"}, nil)
	d := b.start("d", []string{a.address()}, nil)
	eventually(t, "both are there", func() bool { return a.knows("d") && d.knows("a") })
	b.start("d", []string{a.address()}, nil)
	eventually(t, "a says so", func() bool { return a.Status().Conflicts > 0 && a.log.has("two nodes have the same name") })
	if m, _ := a.member("d"); m.Incarnation != d.Incarnation() {
		t.Error("the second one took the place of the first")
	}
}
