package view

import (
	"fmt"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// What the journal is told of what operators do.

// changed tells that an operator has changed or tried something; e says what.
func (v *View) changed(e journal.Event) {
	e.Kind = journal.Changed
	v.o.Journal.Append(e)
}

// tellRemoved tells of a segment that was removed; was is empty unless it was in memory.
func (v *View) tellRemoved(key api.Digest, was *tiering.SegmentInfo) {
	v.changed(journal.Event{
		Object: journal.Segment, Key: key, Profile: uint32(was.Profile), Tenant: v.o.Tenants.NameOf(was.Tenant), Model: was.Model, Client: was.Publisher,
		Bytes: was.Bytes, Tokens: was.Interior, Text: "removed by an operator",
	})
}

// tellControl tells of a change that was made, in words.
func (v *View) tellControl(dry bool, err error, format string, a ...any) {
	if !dry && err == nil {
		v.changed(journal.Event{Text: fmt.Sprintf(format, a...)})
	}
}

// tellSwitched tells of a profile that was switched off or on for a tenant: of the operator,
// and of how its canary is now.
func (v *View) tellSwitched(of profile.Fingerprint, t tier.TenantID, model string, q *api.SwitchQuery) {
	e := journal.Event{Kind: journal.Canary, Tenant: v.o.Tenants.NameOf(t), Model: model, Why: "on"}
	if id, _, ok := v.o.Store.FindProfile(of); ok {
		e.Profile = uint32(id)
	}
	if q.Off {
		e.Why = "off"
	}
	e.Text = fmt.Sprintf("splicing by profile %x is switched %s by an operator", of[:6], e.Why)
	if why := canary.PlainText(q.Why); why != "" {
		e.Text += ": " + why
	}
	v.o.Journal.Append(e)
	v.changed(e)
}

// tellProbed tells of the object store that was tried.
func (v *View) tellProbed(p *api.ObjectProbe) {
	text := "the object store was tried, and does what it is needed for"
	for _, step := range p.Steps {
		if step.Error != "" {
			text = fmt.Sprintf("the object store was tried, and refused to %s: %s", step.Name, step.Error)
			break
		}
	}
	v.changed(journal.Event{Text: text})
}
