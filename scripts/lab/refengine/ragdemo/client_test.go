package ragdemo

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// Through a daemon and in memory the demo must find the same but for times.
func TestRunThroughADaemon(t *testing.T) {
	c := settings.Default()
	dir := t.TempDir()
	c.Socket, c.AdminSocket, c.HTTP = filepath.Join(dir, "s"), filepath.Join(dir, "a"), "off"
	c.Arena, c.Private, c.Staging, c.Slots = 256*settings.MiB, 256*settings.MiB, 64*settings.MiB, 64*settings.MiB
	d, err := daemon.New(c, daemon.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-d.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the daemon does not come up")
	}
	client, err := connector.Open(connector.Options{Socket: d.Socket(), Timeouts: connector.Timeouts{Lookup: 10 * time.Second, Transfer: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	o := Options{Sample: short(t)}
	there, err := RunClient(ctx, client, o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Model(modelSeed)
	if err != nil {
		t.Fatal(err)
	}
	here, err := Run(ctx, m, newInMemory(m), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range there.Ways {
		if got, want := timeless(w), timeless(here.Ways[i]); got != want {
			t.Errorf("through the daemon %+v, in memory %+v", got, want)
		}
	}
}

func timeless(w Way) Way {
	for _, g := range []*Group{&w.Cold, &w.Warm} {
		g.TTFTp50, g.TTFTp95, g.OverFull, g.OverPrefix = 0, 0, 0, 0
	}
	w.HeldBytes = 0
	return w
}
