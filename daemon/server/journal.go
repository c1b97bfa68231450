package server

import (
	"context"
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/journal"
)

// Journal entries about clients.

// about returns an event about a client, with the first of its tenants. The text of tellAttached
// lists all tenants.
func (c *conn) about(kind journal.Kind, a *attachment) journal.Event {
	e := journal.Event{Kind: kind, Client: canary.PlainText(a.client)}
	if len(a.names) > 0 {
		e.Tenant = a.names[0]
	}
	return e
}

func (c *conn) tellAttached(a *attachment) {
	e := c.about(journal.Attached, a)
	e.Text = fmt.Sprintf("connection %d of user %d, process %d, for %s", c.id, c.peer.UID, c.peer.PID, strings.Join(a.names, ", "))
	c.server.journal.Append(e)
}

// tellRegistered records that an engine of a client uses a model.
func (t attachOps) tellRegistered(b *binding) {
	c := t.conn
	e := c.about(journal.Attached, t.at)
	e.Profile = uint32(b.profile)
	if p := c.server.store.ProfileOf(b.profile); p != nil {
		e.Model = p.Identity().Model
	}
	e.Text = fmt.Sprintf("connection %d of user %d registers profile %x with %s", c.id, c.peer.UID, b.fingerprint[:6], strings.TrimSpace(canary.PlainText(b.engine)))
	c.server.journal.Append(e)
}

// tellDetached records that an attached client is no longer served. The connection sends no more
// replies by then.
func (c *conn) tellDetached() {
	a := c.attached.Load()
	if a == nil {
		return
	}
	e := c.about(journal.Detached, a)
	e.Why = context.Cause(c.ctx).Error()
	e.Text = fmt.Sprintf("connection %d of user %d after %d requests: %s", c.id, c.peer.UID, c.requests.Load(), e.Why)
	c.server.journal.Append(e)
}

// tellReport records a canary report in which reused and computed results differ.
func (t reportOps) tellReport(of canary.Key, model string, m *wire.ReportRequest, switched bool) {
	if m.Failed == 0 && !switched {
		return
	}
	c := t.conn
	e := c.about(journal.Canary, t.at)
	e.Profile, e.Tenant, e.Model, e.Why = m.Profile, c.server.TenantName(of.Tenant), model, "differs"
	e.Text = fmt.Sprintf("%d of %d reuses by profile %x differ by up to %.3g, where %.3g is allowed", m.Failed, m.Compared, of.Fingerprint[:6], m.Worst, m.Bound)
	if switched {
		e.Why = "off"
		e.Text += ": splicing is switched off"
	}
	if text := canary.PlainText(m.Text); text != "" {
		e.Text += ": " + text
	}
	c.server.journal.Append(e)
}
