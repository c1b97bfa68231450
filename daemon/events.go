package daemon

import (
	"slices"

	"github.com/spliced-kv/spliced/daemon/events"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openEvents creates the publisher of KV events. It does not listen yet.
func (d *Daemon) openEvents() (err error) {
	c := &d.config
	if !c.UsesEvents() {
		return nil
	}
	format, err := events.ParseFormat(c.EventsFormat)
	if err != nil {
		return err
	}
	salts := map[tier.TenantID][]byte{}
	for _, name := range c.EventsTenants {
		for _, t := range d.tenants {
			if t.Name == name {
				salts[t.ID] = t.Salt
			}
		}
	}
	d.events, err = events.New(events.Config{
		Bind: c.EventsBind.String(), Replay: c.EventsReplay().String(), Pod: c.EventsPod, Model: c.EventsModel, BlockTokens: c.EventsBlock,
		Format: format, Segments: c.EventsSegments, Memory: int64(c.EventsMemory), Salts: salts, Now: d.now, Log: d.log,
		Profile: func(f profile.Fingerprint) (*profile.Profile, bool) {
			_, p, ok := d.store.FindProfile(f)
			return p, ok
		},
		Segment: func(key profile.SegmentKey) (profile.SegmentSpec, []uint32, bool) {
			s, ok := d.store.Segment(key)
			return s.Spec, s.Tokens, ok && s.Published
		},
	})
	return err
}

// openHeld creates the set of published names, if any part listens to it.
func (d *Daemon) openHeld() {
	var listeners []held.Listener
	if d.peers != nil {
		listeners = append(listeners, d.peers)
	}
	if d.events != nil {
		listeners = append(listeners, d.events)
	}
	if len(listeners) > 0 {
		d.held = held.New(listeners...)
	}
}

// serveEvents opens the ports of KV events.
func (d *Daemon) serveEvents() error {
	if d.events == nil {
		return nil
	}
	return d.events.Listen(d.held)
}

// advised returns a function that passes served prompts to the KV events; nil if events are off.
func (d *Daemon) advised() func(*advise.Query, *advise.Advice) {
	if d.events == nil {
		return nil
	}
	return func(q *advise.Query, a *advise.Advice) {
		p := d.store.ProfileOf(q.Profile)
		if p == nil {
			return
		}
		told := events.Prompt{Profile: p, Tenant: q.Tenant, BlockTokens: max(1, q.BlockTokens), Tokens: q.Tokens}
		told.Positions = positionsOf(q, a, told.BlockTokens)
		if len(q.Segments) > 0 && q.Segments[0].Begin == 0 {
			told.First = q.Segments[0].Tokens
		}
		d.events.Served(&told)
	}
}

// positionsOf returns the positions, in ascending order, at which checkpoints of a prompt may end:
// the end of the prefix that was found, the advised positions, and the end of the prompt's last
// whole block, at which the next turn begins.
func positionsOf(q *advise.Query, a *advise.Advice, block int) []int {
	at := []int{q.PrefixTokens, len(q.Tokens) / block * block}
	for i := range a.Positions {
		at = append(at, a.Positions[i].Tokens)
	}
	at = slices.DeleteFunc(at, func(n int) bool { return n <= 0 || n > len(q.Tokens) })
	slices.Sort(at)
	return slices.Compact(at)
}
