package daemon

import (
	"context"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Checkpoints are named by their clients, so that two tenants may have one of the
// same name. The one that is on disk says nothing about the other.
func TestAnotherTenantsCopyIsNotShown(t *testing.T) {
	r, ours, p := startClient(t, withDisk(t), nil)
	root, _ := ours.saveChain(p)
	eventually(t, "the first is on disk", func() bool { return r.disk.Counters().Written == 2 })
	theirs := attach(t, r.Socket(), wire.TenantName{Name: "guarded", Token: "open sesame"})
	theirs.register(p)
	theirs.saveChain(p)
	seen := map[string]api.Checkpoint{}
	for c, err := range r.adminClient(t).Checkpoints(context.Background(), api.CheckpointQuery{Limit: 100}) {
		must(t, err)
		if c.Hash == api.Digest(root.hash) {
			seen[c.Tenant] = c
		}
	}
	if c := seen[settings.DefaultTenant]; !slices.Equal(c.Tiers, []string{"dram", "disk"}) || c.Level == api.LevelMemory || c.DiskBytes == 0 {
		t.Errorf("whose copy it is: %+v", c)
	}
	if c := seen["guarded"]; !slices.Equal(c.Tiers, []string{"dram"}) || c.Level != api.LevelMemory || c.DiskBytes != 0 {
		t.Errorf("the other tenant: %+v", c)
	}
}
