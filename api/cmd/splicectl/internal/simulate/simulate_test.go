package simulate

import (
	"encoding/json"
	"testing"
)

func TestAHundredNodes(t *testing.T) {
	r, err := Run(t.Context(), Options{Nodes: 100, Keys: 10_000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.MarshalIndent(r, "", " ")
	t.Logf("%s", text)
}
