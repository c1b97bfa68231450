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

// Journal entries about actions of operators.

// changed records an action of an operator.
func (v *base) changed(e journal.Event) {
	e.Kind = journal.Changed
	v.o.Journal.Append(e)
}

// tellRemoved records the removal of a segment. The parameter was is empty if it was only on disk.
func (v *base) tellRemoved(key api.Digest, was *tiering.SegmentInfo) {
	v.changed(journal.Event{
		Object: journal.Segment, Key: key, Profile: uint32(was.Profile), Tenant: v.o.Tenants.NameOf(was.Tenant), Model: was.Model, Client: was.Publisher,
		Bytes: was.Bytes, Tokens: was.Interior, Text: "removed by an operator",
	})
}

// tellControl records a change, described in words, unless it failed or was a dry run.
func (v *base) tellControl(dry bool, err error, format string, a ...any) {
	if !dry && err == nil {
		v.changed(journal.Event{Text: fmt.Sprintf(format, a...)})
	}
}

// tellSwitched records that an operator switched splicing off or on for a profile of a tenant: as
// an event about the canary, and as an action of an operator.
func (v *base) tellSwitched(of profile.Fingerprint, t tier.TenantID, model string, q *api.SwitchQuery) {
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

// tellProbed records a test of the object store.
func (v *base) tellProbed(p *api.ObjectProbe) {
	text := "the object store passed its test"
	for _, step := range p.Steps {
		if step.Error != "" {
			text = fmt.Sprintf("the object store failed its test, to %s: %s", step.Name, step.Error)
			break
		}
	}
	v.changed(journal.Event{Text: text})
}
