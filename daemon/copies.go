package daemon

import (
	"context"

	"github.com/valyala/fasthttp"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openPush creates the sender, which sends an object that only this node holds to another node.
func (d *Daemon) openPush() (err error) {
	if d.config.ClusterCopies {
		d.peers.push, err = peer.NewNeighbours(peer.PushConfig{Peers: d.peers.fetch})
	}
	return err
}

// openTaker creates the receiver of objects that other nodes send.
func (d *Daemon) openTaker(peerOf func(*fasthttp.RequestCtx) string) (err error) {
	if d.config.ClusterCopies {
		d.peers.taker, err = peer.NewTaker(peer.TakerConfig{Store: d.store, Names: d.peers.names, PeerOf: peerOf})
	}
	return err
}

// outlets returns the places that get copies of objects before this node loses the objects: the
// object store, and another node with room for objects that the store does not accept.
func (d *Daemon) outlets() (list []tiering.Outlet) {
	if d.object != nil && d.config.ObjectWrite != "none" {
		list = append(list, tiering.Outlet{To: d.object, All: d.config.ObjectWrite == "all"})
	}
	if d.peers != nil && d.peers.push != nil {
		list = append(list, tiering.Outlet{To: d.peers.push, Last: true})
	}
	return list
}

// copies returns how many other nodes are believed to have an object, and whether the object store
// is believed to have it.
func (d *Daemon) copies(f profile.Fingerprint, t tier.TenantID, n tier.Name) (nodes int, shared bool) {
	if d.peers != nil {
		nodes = d.peers.fetch.Copies(f, t, n)
	}
	if d.object != nil {
		_, shared = d.object.Hint(&tier.Want{Name: n, Fingerprint: f, Tenant: t})
	}
	return nodes, shared
}

// sendCopies sends objects that exist only in this node's memory to the outlets. It takes at most
// DrainTimeout.
func (d *Daemon) sendCopies() {
	if d.peers != nil && d.peers.taker != nil {
		d.peers.taker.Stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.config.DrainTimeout)
	defer cancel()
	sent, err := d.store.Offload(ctx)
	if err != nil {
		d.log.Warn().Err(err).Int("sent", sent).Msg("some objects that only this node holds were not copied")
	} else if sent > 0 {
		d.log.Info().Int("sent", sent).Msg("copied objects that only this node holds")
	}
}
