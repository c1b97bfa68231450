package daemon

import (
	"cmp"
	"fmt"

	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Journal entries about objects, devices and nodes. Callers hold their own locks.

// decided returns a function that records stored and evicted objects in the journal.
func (d *Daemon) decided() func(decision.Decision) {
	if d.journal == nil {
		return nil
	}
	c := &d.config
	names := &journal.Names{
		Tenant: func(id tier.TenantID) string {
			if id == 0 || int(id) > len(d.tenants) {
				return ""
			}
			return d.tenants[id-1].Name // tenantsOf numbers them from 1
		},
		Public: cmp.Or(c.EvictionPublic, c.Eviction), Private: cmp.Or(c.EvictionPrivate, c.Eviction), Quota: c.Eviction, Disk: diskEviction,
	}
	return func(x decision.Decision) { d.journal.Decided(&x, names) }
}

func (d *Daemon) diskChanged(to disk.State, cause error) {
	e := journal.Event{Kind: journal.Disk, Why: to.String(), Text: "the disk tier is " + to.String()}
	if cause != nil {
		e.Text = fmt.Sprintf("%s: %v", e.Text, cause)
	}
	d.journal.Append(e)
}

func (d *Daemon) gpuChanged(g *gpu.GPU, to gpu.State, why error) {
	e := journal.Event{Kind: journal.GPU, Why: to.String(), Text: fmt.Sprintf("%s is %v", g.Name, to)}
	if why != nil {
		e.Text = fmt.Sprintf("%s: %v", e.Text, why)
	}
	d.journal.Append(e)
}

// doubted is called when a member stops answering, or answers again.
func (p *peers) doubted(m cluster.Member) {
	if m.State == cluster.Unreachable {
		p.tell(&m, "suspect")
	} else {
		p.tell(&m, "answers")
	}
}

// tell records an event about another node of the cluster.
func (p *peers) tell(m *cluster.Member, does string) {
	means := map[string]string{
		"joined": "has joined", "left": "has left", "failed": "has failed: it stopped answering without announcing that it leaves", "replaced": "has restarted or changed",
		"suspect": "does not answer", "answers": "answers again",
	}
	p.journal.Append(journal.Event{Kind: journal.Peer, Why: does, Text: fmt.Sprintf("node %s at %v %s", m.Name, m.Peer, means[does])})
}
