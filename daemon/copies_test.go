package daemon

import (
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// copyConfigs are nodes of a cluster, of which the first has a small pool of segments.
func copyConfigs(t testing.TB, names ...string) []settings.Config {
	t.Helper()
	configs := clusterConfigs(t, names...)
	configs[0].Arena = 1 * settings.MiB
	return configs
}

// met waits until each node works with all others.
func met(t testing.TB, nodes ...*running) {
	t.Helper()
	eventually(t, "the nodes see each other", func() bool {
		for _, n := range nodes {
			inUse := 0
			for _, m := range n.view.Cluster().Members {
				if m.InUse && m.Index != nil && m.Index.Complete {
					inUse++
				}
			}
			if inUse != len(nodes)-1 {
				return false
			}
		}
		return true
	})
}

// believes tells whether a node believes that another one holds a document.
func (r *running) believes(p *profile.Profile, d *document) bool {
	_, ok := r.peers.fetch.Hint(&tier.Want{Name: tier.Name{Key: d.key}, Fingerprint: p.Fingerprint(), Tenant: 1})
	return ok
}

// What is about to leave the memory of a node, and is nowhere else, goes to one with room.
func TestLastCopiesGoToANodeWithRoom(t *testing.T) {
	configs := copyConfigs(t, "a", "b")
	a, b := startDaemon(t, configs[0], nil), startDaemon(t, configs[1], nil)
	p := testProfile(1)
	_, onA := openClient(t, a.Socket(), p, connector.Binding{})
	_, onB := openClient(t, b.Socket(), p, connector.Binding{})
	met(t, a, b)
	var docs []*document
	for i := range 40 {
		doc := newDocument(p, nil, uint64(100+i), 300, profile.RoleMid)
		put(t, onA, doc)
		docs = append(docs, doc)
		eventually(t, "b knows what a holds", func() bool { return b.believes(p, doc) })
		eventually(t, "copies are sent", func() bool { return a.counter("offload_sending") == 0 })
	}
	if n := a.counter("evicted_room"); n < 10 {
		t.Fatalf("%v have left the memory of a", n)
	}
	held := 0
	for _, doc := range docs {
		f := found(t, onA, doc)
		if f.Hit() {
			held++
		}
	}
	var pushed, took, unplaced float64
	eventually(t, "what b took is counted by a", func() bool { // one whose answer came too late was taken, and a has not placed it
		pushed, took, unplaced = a.counter("peer_copies_pushed"), b.counter("peer_copies_taken"), a.counter("peer_copies_unplaced")
		return pushed > 0 && took >= pushed && took <= pushed+unplaced
	})
	t.Logf("%d of 40 are held by a or b; %v pushed, %v taken, %v unplaced, %v lost for want of time", held, pushed, took,
		unplaced, a.counter("offload_no_room"))
	if held < 36 {
		t.Errorf("%d of 40 are held", held)
	}
	var moved *document
	for _, doc := range docs {
		if _, err := a.view.Segment(api.Digest(doc.key)); err != nil {
			moved = doc
			break
		}
	}
	if moved == nil {
		t.Fatal("a holds everything")
	}
	get(t, onB, moved).Release() // the very bytes
	last := docs[len(docs)-1]
	if d, err := a.view.Segment(api.Digest(last.key)); err != nil || d.OtherNodes > 1 || d.ObjectStore {
		t.Errorf("copies of the newest: %+v, %v", d, err)
	}
	eventually(t, "one is told of with its copies", func() bool {
		for _, doc := range docs {
			if d, err := a.view.Segment(api.Digest(doc.key)); err == nil && d.OtherNodes == 1 {
				return true
			}
		}
		return false
	})
}

// A node that is stopped hands what only it has to the others.
func TestAStopHandsOverWhatIsNowhereElse(t *testing.T) {
	configs := clusterConfigs(t, "a", "b")
	a, b := startDaemon(t, configs[0], nil), startDaemon(t, configs[1], nil)
	p := testProfile(1)
	_, onA := openClient(t, a.Socket(), p, connector.Binding{})
	_, onB := openClient(t, b.Socket(), p, connector.Binding{})
	met(t, a, b)
	var docs []*document
	for i := range 10 {
		docs = append(docs, newDocument(p, nil, uint64(200+i), 300, profile.RoleMid))
		put(t, onA, docs[i])
	}
	eventually(t, "b knows what a holds", func() bool {
		for _, doc := range docs {
			if !b.believes(p, doc) {
				return false
			}
		}
		return true
	})
	a.stop()
	for _, doc := range docs {
		get(t, onB, doc).Release()
	}
	if n := b.counter("peer_copies_taken"); n != 10 {
		t.Errorf("%v copies are taken", n)
	}
}

// A node takes nothing for which something would have to leave, and nothing where it is
// switched off.
func TestANodeWithoutRoomTakesNothing(t *testing.T) {
	for name, change := range map[string]func(c *settings.Config){
		"full":         func(c *settings.Config) { c.Arena = 256 * settings.KiB },
		"switched off": func(c *settings.Config) { c.ClusterCopies = false },
	} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			configs := copyConfigs(t, "a", "b")
			change(&configs[1])
			a, b := startDaemon(t, configs[0], nil), startDaemon(t, configs[1], nil)
			p := testProfile(1)
			_, onA := openClient(t, a.Socket(), p, connector.Binding{})
			_, onB := openClient(t, b.Socket(), p, connector.Binding{})
			met(t, a, b)
			var own []*document
			for i := range 4 { // of 44 KiB, so that another one makes memory short
				own = append(own, newDocument(p, nil, uint64(300+i), 300, profile.RoleMid))
				put(t, onB, own[i])
			}
			before := b.counter("published")
			for i := range 40 {
				put(t, onA, newDocument(p, nil, uint64(400+i), 300, profile.RoleMid))
				eventually(t, "copies are sent or not", func() bool { return a.counter("offload_sending") == 0 })
			}
			for _, doc := range own {
				get(t, onB, doc).Release()
			}
			if n := b.counter("peer_copies_taken"); n > 1 {
				t.Errorf("%v copies are taken", n)
			}
			if n := b.counter("published"); n != before {
				t.Errorf("%v published, %v before", n, before)
			}
			if n := b.counter("evicted_room"); n != 0 {
				t.Errorf("%v have left b", n)
			}
			if a.counter("peer_copies_refused")+a.counter("peer_copies_failed") == 0 {
				t.Error("nobody was asked")
			}
			if !b.view.Status().Ready {
				t.Error("b is not ready")
			}
		})
	}
}
