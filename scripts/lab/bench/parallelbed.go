package bench

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/api/loopback"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
)

// team is a cluster of daemons on this machine. The first daemon combines segments; each other
// daemon is a worker with a modelled engine. Such an engine waits for the duration of a run, and
// then publishes as many bytes as a segment of the model has.
type team struct {
	dir     string
	daemons []*child.Daemon
	clients []*connector.Client
	models  []*connector.Model // of the daemons; the first one combines
	profile *profile.Profile
	prefill cost.Prefill // of each engine
	parts   map[int][][]byte

	stop    context.CancelFunc
	engines sync.WaitGroup
	mu      sync.Mutex
	failed  error
	ended   time.Time // end of the last run
	runs    int
}

// Timeouts for a busy machine.
var patientClient = connector.Timeouts{Lookup: 10 * time.Second, Transfer: 30 * time.Second, Attach: 20 * time.Second}

// startTeam runs a cluster of workers+1 daemons, with an engine at each worker.
func startTeam(ctx context.Context, s *session, workers int, prefill cost.Prefill) (t *team, err error) {
	t = &team{prefill: prefill, parts: map[int][][]byte{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.profile, err = benchProfile("parallel", 6, 8); err != nil {
		return t, err
	}
	if t.dir, err = os.MkdirTemp("", "spliced-parallel-"); err != nil {
		return t, err
	}
	if err := t.launch(ctx, s, workers+1); err != nil {
		return t, err
	}
	running, stop := context.WithCancel(context.Background())
	t.stop = stop
	for i, d := range t.daemons {
		c, err := connector.Open(connector.Options{Socket: d.Socket, Name: "splicectl bench", Timeouts: patientClient})
		if err != nil {
			return t, err
		}
		t.clients = append(t.clients, c)
		m, err := c.Register(t.profile, connector.Binding{Engine: "modelled"})
		if err == nil {
			err = m.WaitReady(ctx)
		}
		if err != nil {
			return t, err
		}
		t.models = append(t.models, m)
		if err := t.teach(ctx, m); err != nil {
			return t, err
		}
		if i > 0 {
			t.engines.Go(func() { t.engine(running, m) })
		}
	}
	return t, nil
}

func (t *team) launch(ctx context.Context, s *session, n int) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	keyring, config := filepath.Join(t.dir, "keyring"), filepath.Join(t.dir, "config.yaml")
	err := os.WriteFile(keyring, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600)
	if err == nil {
		err = os.WriteFile(config, []byte("tenants:\n- name: default\n  parallel: true\n"), 0o600)
	}
	if err != nil {
		return err
	}
	gossip, release, err := loopback.Reserve(n)
	if err != nil {
		return err
	}
	defer release() // for the listeners there
	for i := range n {
		d, err := child.Start(ctx, child.Options{Binary: s.options.Daemon, Args: []string{
			"-config", config, "-arena", "512MiB", "-private", "16MiB", "-http", "off",
			"-cluster-seeds", strings.Join(gossip, ","), "-cluster-name", "bench", "-cluster-node", fmt.Sprintf("node-%d", i),
			"-cluster-bind", gossip[i], "-cluster-peer-bind", "127.0.0.1:0", "-cluster-keyring", keyring,
		}})
		if err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		t.daemons = append(t.daemons, d)
	}
	return nil
}

// teach reports an engine's speed to its daemon, in the same way as engines that measure their
// own prefills.
func (t *team) teach(ctx context.Context, m *connector.Model) error {
	q := connector.AdviseQuery{Tokens: tokensOf(0, 16)}
	for range 16 {
		for _, run := range [][2]int{{0, 64}, {0, 300}, {0, 1200}, {0, 2400}, {600, 2400}, {1200, 2400}, {2000, 2400}, {0, 4800}} {
			took := time.Duration(t.prefill.Millis(run[0], run[1]) * 1e6)
			q.Samples = append(q.Samples, connector.Sample{Begin: run[0], End: run[1], Took: took})
		}
	}
	_, err := m.Advise(ctx, &q)
	return err
}

// engine runs jobs one after another. It publishes the result of a job while it runs the next
// job.
func (t *team) engine(ctx context.Context, m *connector.Model) {
	var publishing sync.WaitGroup
	defer publishing.Wait()
	for {
		jobs, err := m.WatchJobs(ctx, &connector.WorkerQuery{Jobs: 4, Pieces: true, Wait: 2 * time.Second})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.fail(err)
			return
		}
		for _, j := range jobs.New {
			timer := time.NewTimer(time.Duration(t.prefill.Millis(j.Begin, len(j.Tokens)) * 1e6))
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			t.ran()
			publishing.Go(func() { t.fail(t.publish(ctx, m, &j)) })
		}
	}
}

// publish publishes the segment of a job. If another engine has computed the first tokens of the
// segment (Begin is above 0), publish first acquires the segment with these tokens, Left.
func (t *team) publish(ctx context.Context, m *connector.Model, j *connector.Job) error {
	if j.Begin > 0 {
		rows, err := m.Acquire(ctx, []profile.SegmentKey{j.Left}, connector.AcquireOptions{Wait: 10 * time.Second})
		if err != nil {
			return err
		}
		if rows[0].Err != nil {
			return fmt.Errorf("the first piece of a segment: %w", rows[0].Err)
		}
		defer rows[0].Lease.Release()
	}
	_, err := m.Put(ctx, &connector.PutQuery{Spec: j.Spec, Tokens: j.Tokens, Source: connector.Source{Parts: t.bytes(j.Spec)}})
	if errors.Is(err, connector.ErrExists) || ctx.Err() != nil {
		return nil
	}
	return err
}

// bytes returns the bytes of a segment's parts. Segments of equal length have the same bytes.
func (t *team) bytes(spec profile.SegmentSpec) [][]byte {
	_, n := spec.Interior()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts[n] == nil {
		t.parts[n] = contents(t.profile.SegmentLayout(n))
	}
	return t.parts[n]
}

func (t *team) ran() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended, t.runs = time.Now(), t.runs+1
}

func (t *team) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = errors.Join(t.failed, err)
}

func (t *team) close() error {
	if t.stop != nil {
		t.stop()
	}
	t.engines.Wait()
	err := t.failed
	for _, c := range t.clients {
		c.Close()
	}
	for _, d := range t.daemons {
		err = errors.Join(err, d.Stop())
	}
	if t.dir != "" {
		err = errors.Join(err, os.RemoveAll(t.dir))
	}
	return err
}
