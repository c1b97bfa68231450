package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestDecisionsAreToldOfAnObjectAndOfAll(t *testing.T) {
	d := daemonForTest(t)
	key := publish(t, d.Socket)
	out, _ := splicectl(t, cli.ExitOK, "inspect", key.String()[:12], "-admin", d.Admin)
	if !strings.Contains(out, "admitted") || !strings.Contains(out, "filled by its writer") {
		t.Errorf("inspect:\n%s", out)
	}
	out, _ = splicectl(t, cli.ExitOK, "inspect", key.String(), "--json", "-admin", d.Admin)
	var one inspected
	if err := json.Unmarshal([]byte(out), &one); err != nil || len(one.Decisions) != 1 || *one.Decisions[0].Key != key || one.Key != key {
		t.Errorf("inspect: %v %s", err, out)
	}
	if _, err := d.API().Remove(t.Context(), key, false); err != nil {
		t.Fatal(err)
	}
	out, _ = splicectl(t, cli.ExitFailed, "inspect", key.String()[:12], "-admin", d.Admin)
	if !strings.Contains(out, "is not held") || !strings.Contains(out, "removed by an operator") {
		t.Errorf("inspect of what was removed:\n%s", out)
	}
	out, _ = splicectl(t, cli.ExitOK, "inspect", "decisions", "--json", "-what", "dropped", "-admin", d.Admin)
	var all listed[api.Decision]
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Items) != 1 || all.Items[0].What != api.DecidedDropped {
		t.Errorf("decisions: %v %s", err, out)
	}
	out, _ = splicectl(t, cli.ExitOK, "inspect", "decisions", "-limit", "1", "-admin", d.Admin)
	if rows := strings.Count(out, "\n"); rows != 2 || !strings.Contains(out, "dropped") {
		t.Errorf("the last decision:\n%s", out)
	}
	splicectl(t, cli.ExitFailed, "inspect", "decisions", "-what", "left", "-admin", d.Admin)
}

func TestUnknownTenantsAndProfilesAreNamed(t *testing.T) {
	d := daemonForTest(t)
	publish(t, d.Socket)
	for _, line := range []string{"ls --tenant nobody", "ls leases --tenant nobody", "ls requests --tenant nobody", "inspect decisions --tenant nobody", "trace --tenant nobody", "rm segments --tenant nobody"} {
		_, errs := splicectl(t, cli.ExitFailed, append(strings.Fields(line), "-admin", d.Admin)...)
		if !strings.Contains(errs, `no such tenant: "nobody"`) || strings.Contains(errs, "served yet") {
			t.Errorf("%s: %s", line, errs)
		}
	}
	for _, line := range []string{"ls --profile 99", "ls checkpoints --profile 0", "ls requests --profile 99", "rm segments --profile 99"} {
		_, errs := splicectl(t, cli.ExitFailed, append(strings.Fields(line), "-admin", d.Admin)...)
		if !strings.Contains(errs, "no engine has registered a profile") {
			t.Errorf("%s: %s", line, errs)
		}
	}
}

func TestACheckpointCanBeInspected(t *testing.T) {
	d := daemonForTest(t)
	_, m := engine(t, d.Socket, "saver", connector.Binding{})
	tokens := []uint32{5, 6, 7, 8}
	hashes, ok := m.PrefixHashes(16, tokens, []int{4})
	if !ok {
		t.Fatal("no salt")
	}
	fill := func(_ profile.Part, _ int, _ int64, dst []byte) error { clear(dst); return nil }
	q := &connector.SaveQuery{Hash: hashes[0], Tokens: 4, Kind: connector.Exact, Source: connector.Source{Fill: fill}}
	if _, err := m.Save(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Advise(t.Context(), &connector.AdviseQuery{Tokens: tokens, Record: true, Cuts: []int{2}}); err != nil {
		t.Fatal(err)
	}
	digits := api.Digest(hashes[0]).String()[:10]
	out, _ := splicectl(t, cli.ExitOK, "inspect", digits, "-admin", d.Admin)
	if !strings.Contains(out, "exact in dram") || !strings.Contains(out, "filled by its writer") {
		t.Errorf("inspect:\n%s", out)
	}
	// What advice was given has no key.
	out, _ = splicectl(t, cli.ExitOK, "inspect", "decisions", "-admin", d.Admin)
	if strings.Count(out, "checkpoint") < 2 || !strings.Contains(out, "discouraged") || strings.Contains(out, "refused") {
		t.Errorf("decisions:\n%s", out)
	}
}
