package profile

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Mistakes in rows that no config of the tests reads.
func TestTheTableOfModelsIsSound(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(modelsJSON))
	d.DisallowUnknownFields()
	var table modelTable
	must(t, d.Decode(&table))
	last := map[string]*modelRow{}
	for _, row := range table.Models {
		if row.Like != "" {
			if last[row.Like] == nil || row.Layers != nil { // an earlier type, so that no row leads back
				t.Errorf("%v: the row is like %q", row.Types, row.Like)
			}
		} else if row.Layers == nil {
			t.Errorf("%v: the row has no layers", row.Types)
		}
		for _, name := range row.Types {
			last[name] = row
		}
		if l := row.Linear; l != nil && l.Family != "" && familyNamed(l.Family).Transition() == TransitionNone {
			t.Errorf("%v: family %q is unknown", row.Types, l.Family)
		}
		kinds := map[string]bool{
			"none": true, "linear": row.Linear != nil, "full": row.Attention != nil, "window": row.Attention != nil && row.Attention.Window != "",
		}
		for i, rule := range row.Layers {
			if rule.Names == "" && rule.At == "" && i < len(row.Layers)-1 {
				t.Errorf("%v: layer rule %d hides the later ones", row.Types, i)
			}
			for _, names := range rule.Of {
				rule.Each += " " + names
			}
			for kind := range rule.OneOf {
				rule.Each += " " + kind
			}
			for _, kind := range strings.Fields(rule.Each) {
				if !kinds[kind] {
					t.Errorf("%v: the row does not describe the layer %q", row.Types, kind)
				}
			}
		}
	}
	for name, row := range last {
		if row.Has != "" || row.Section != "" || row.If != nil || row.UnlessClass != "" {
			t.Errorf("%s: the last row has conditions", name)
		}
	}
}
