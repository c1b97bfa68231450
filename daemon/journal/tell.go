package journal

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/api"
)

// tell converts an event to the form that readers get.
func (j *Journal) tell(e *Event) api.Event {
	out := api.Event{
		ID: j.base + e.number, At: e.At, Kind: e.Kind.String(), Object: e.Object.String(), Profile: e.Profile, Tenant: e.Tenant,
		Model: e.Model, Client: e.Client, Bytes: e.Bytes, Tokens: e.Tokens, Why: e.Why, Policy: e.Policy, Text: e.Text,
	}
	if e.Object != NoObject {
		out.Key = new(api.Digest(e.Key))
	}
	if !math.IsNaN(e.Value) && !math.IsInf(e.Value, 0) { // JSON cannot represent NaN and infinity
		out.Value = e.Value
	}
	if out.Text == "" {
		out.Text = textOf(e)
	}
	return out
}

// textOf returns the details of an event that its kind and object do not tell.
func textOf(e *Event) string {
	switch {
	case e.Kind == Published:
		return fmt.Sprintf("%d tokens by %s", e.Tokens, e.Client)
	case e.Rivals != NoObject:
		return fmt.Sprintf("%s: %s %x needs it, worth %.3g ms per MiB against %.3g", e.Why, e.Rivals, e.Rival[:6], e.Worth, e.Value)
	}
	return e.Why
}
