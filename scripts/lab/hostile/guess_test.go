package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// A token of a tenant cannot be tried out, and who tries is in the log.
func TestHostileTokensAreGuessedSlowly(t *testing.T) {
	t.Parallel() // it waits
	config := filepath.Join(shortDir(t), "c.yaml")
	if err := os.WriteFile(config, []byte("tenants: [{name: default}, {name: guarded, token: open sesame, salt: s}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := start(t, bounds{}, "-config="+config)
	var guesses atomic.Int64
	var attackers sync.WaitGroup
	begun := time.Now()
	for range 16 {
		attackers.Go(func() {
			for time.Since(begun) < 2*time.Second || guesses.Load() == 0 {
				hello := &wire.HelloRequest{Client: "guess", Tenants: []wire.TenantName{{Name: "guarded", Token: fmt.Sprint(guesses.Load())}}}
				if f, code := v.frames(hello); code == wire.Denied {
					guesses.Add(1)
					f.conn.Close()
				}
			}
		})
	}
	// Whoever knows his token is not held up by them.
	attach := p99(20, func() {
		v.client(connector.Options{Name: "other", Tenants: []connector.Tenant{{Name: "guarded", Token: "open sesame"}}}).Close()
	})
	attackers.Wait()
	took := time.Since(begun).Seconds()
	rate := float64(guesses.Load()) / took
	if rate > 8 {
		t.Errorf("%d guesses in %.1f s", guesses.Load(), took)
	}
	if *bars && attach > 2*time.Second {
		t.Errorf("a client with its token took %v to attach", attach)
	}
	eventually(t, "each guess is in the log", func() bool {
		return int64(strings.Count(v.log.String(), "tenant token refused")) >= guesses.Load()
	})
	report(t, "tokens of a tenant on 16 connections at once", fmt.Sprintf("%.1f guesses a second, each in the log", rate), fmt.Sprintf("attached within %v", attach.Round(time.Millisecond)))
}

// One user cannot take all connections.
func TestHostileUserCannotTakeAllConnections(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: only root can act as another user")
	}
	v := start(t, bounds{UID: daemonUID, GID: daemonUID}, "-max-connections=32")
	for range 64 {
		conn, err := seqpacket.Dial(v.Socket, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if said := output(t, join, bounds{UID: daemonUID, GID: daemonUID}, v.Socket, ""); said != "attached\n" {
		t.Errorf("another user %s", said)
	}
	report(t, "64 connections of one user, of 32 that may be", "28", "another user attaches")
}
