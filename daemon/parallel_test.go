package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
)

// side is a node of a cluster and an engine at it.
type side struct {
	*running
	model *connector.Model
}

// sides starts nodes whose tenant may compute for others; speed is what every one believes
// of its engines, in tokens a second.
func sides(t *testing.T, speed int, change func(i int, c *settings.Config), names ...string) []side {
	t.Helper()
	leakCheck(t)
	configs := clusterConfigs(t, names...)
	var list []side
	for i := range configs {
		c := &configs[i]
		c.PrefillSpeed = speed
		for k := range c.Tenants {
			c.Tenants[k].Parallel = true
		}
		if change != nil {
			change(i, c)
		}
		d := startDaemon(t, *c, nil)
		_, m := openClient(t, d.Socket(), testProfile(1), connector.Binding{})
		list = append(list, side{d, m})
	}
	return list
}

// documents are n segments of 300 tokens.
func documents(n int) []*document { return documentsOf(100, n) }

// engine is a worker whose segments come from a list, until the test ends.
type engine struct {
	side
	docs map[profile.SegmentKey]*document
	// meet is called with each job, before it is done; false = it is declined.
	meet func(connector.Job) bool
	jobs chan profile.SegmentKey // of those that are done
}

func (s side) works(t *testing.T, docs []*document, meet func(connector.Job) bool) *engine {
	t.Helper()
	e := &engine{side: s, docs: map[profile.SegmentKey]*document{}, meet: meet, jobs: make(chan profile.SegmentKey, 64)}
	for _, d := range docs {
		e.docs[d.key] = d
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.run(ctx, t) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	eventually(t, "the engine is a worker", func() bool { return s.work.Load().Workers > 0 })
	return e
}

func (e *engine) run(ctx context.Context, t *testing.T) {
	var declined []uint64
	var primers []profile.PrimerID
	for _, d := range e.docs {
		if id := d.spec.Primer; id != (profile.PrimerID{}) && !slices.Contains(primers, id) {
			primers = append(primers, id)
		}
	}
	for ctx.Err() == nil {
		jobs, err := e.model.WatchJobs(ctx, &connector.WorkerQuery{Jobs: 1, Primers: primers, Wait: 2 * time.Second, Declined: declined})
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, connector.ErrUnavailable) {
				t.Errorf("watch: %v", err)
			}
			return
		}
		declined = nil
		for _, j := range jobs.New {
			d := e.docs[j.Key]
			if e.meet != nil && !e.meet(j) || d == nil {
				declined = append(declined, j.ID)
				continue
			}
			if _, err := e.model.Put(ctx, &connector.PutQuery{Spec: j.Spec, Tokens: j.Tokens, Source: connector.Source{Parts: partsOf(d)}}); err != nil && ctx.Err() == nil {
				t.Errorf("put: %v", err)
			}
			e.jobs <- j.Key
		}
	}
}

// done waits until the engine has done its last job of n: who asked hears of a segment before
// the engine does that published it.
func (e *engine) done(t *testing.T, n int) {
	t.Helper()
	eventually(t, "all jobs are done", func() bool { return len(e.jobs) >= n })
	if len(e.jobs) != n {
		t.Errorf("%d jobs were done, not %d", len(e.jobs), n)
	}
}

// known waits until home knows of so many others with engines, and has connections to them:
// their offers come too late otherwise while a machine is busy.
func (s side) known(t *testing.T, others []side) {
	t.Helper()
	short := askFor([]*document{newDocument(testProfile(1), nil, 99, 16, profile.RoleMid)})
	defer func() {
		t.Helper()
		for range 3 {
			eventually(t, "the others make offers in time", func() bool {
				p := plan(t, s, short)
				if p.ID != 0 {
					t.Fatalf("a short segment is worth a plan: %+v", p)
				}
				return p.Alone != wire.AloneNoWorkers
			})
		}
	}()
	eventually(t, "the sets of the others are known", func() bool {
		c := s.view.Cluster()
		if len(c.Members) != len(others)+1 {
			return false
		}
		for _, m := range c.Members[1:] {
			for _, o := range others {
				if o.config.ClusterNode == m.Name && (m.Index == nil || m.Index.Version < o.peers.own.Version()) {
					return false
				}
			}
		}
		return true
	})
}

func askFor(docs []*document) *connector.ParallelQuery {
	q := &connector.ParallelQuery{}
	for _, d := range docs {
		q.Segments = append(q.Segments, connector.SegmentIDs{Spec: d.spec, Tokens: d.tokens})
	}
	return q
}

// combine does what an engine does with a plan: its own rows, and those that others did
// not bring.
func (s side) combine(t *testing.T, docs []*document, p connector.Parallel) (progress []uint8) {
	t.Helper()
	progress = make([]uint8, len(docs))
	for _, o := range p.Own {
		if o.Begin > 0 || o.End < docs[o.Row].spec.Tokens {
			t.Fatalf("a piece: %+v", o)
		}
		put(t, s.model, docs[o.Row])
	}
	for open := 1; p.ID != 0 && open > 0; {
		list, left, err := s.model.WatchPlan(context.Background(), p.ID, patience)
		must(t, err)
		for _, x := range list {
			if progress[x.Row] != 0 {
				t.Errorf("row %d is told twice", x.Row)
			}
			progress[x.Row] = x.What
			if x.What == wire.ProgressAborted || x.What == wire.ProgressLate {
				put(t, s.model, docs[x.Row])
			}
		}
		open = left
	}
	for _, d := range docs {
		get(t, s.model, d).Release()
	}
	if p.ID != 0 {
		if err := s.model.EndPlan(context.Background(), p.ID); err != nil {
			t.Error(err)
		}
	}
	return progress
}

func plan(t *testing.T, s side, q *connector.ParallelQuery) connector.Parallel {
	t.Helper()
	p, err := s.model.PlanSegments(context.Background(), q)
	must(t, err)
	return p
}

func TestSegmentsAreComputedByTheEnginesOfOtherNodes(t *testing.T) {
	s := sides(t, 1, nil, "a", "b", "c")
	docs := documents(6)
	b, c := s[1].works(t, docs, nil), s[2].works(t, docs, nil)
	s[0].known(t, s[1:])
	if w := s[1].view.Cluster().Workers; len(w) != 1 || w[0].Tenant != settings.DefaultTenant || w[0].AtOnce != 1 {
		t.Errorf("b shows its engines as %+v", w)
	}
	p := plan(t, s[0], askFor(docs))
	if p.ID == 0 || len(p.Own) != 2 || p.Expected >= p.Serial/2 {
		t.Fatalf("%+v", p)
	}
	workers := map[uint32]int{}
	for _, r := range p.Rows {
		workers[r.Worker]++
	}
	if len(workers) != 3 || workers[0] != 2 {
		t.Errorf("rows by worker: %v", workers)
	}
	for i, x := range s[0].combine(t, docs, p) {
		if (x == wire.ProgressCommitted) != (p.Rows[i].Worker != 0) {
			t.Errorf("row %d of worker %d: progress %d", i, p.Rows[i].Worker, x)
		}
	}
	b.done(t, 2)
	c.done(t, 2)
	for name, want := range map[string]float64{"parallel_plans": 1, "parallel_jobs_sent": 4, "parallel_rows_committed": 4, "parallel_committed_tokens": 1200, "parallel_plans_open": 0, "parallel_room_bytes": 0} {
		if got := s[0].counter(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := s[1].counter("parallel_jobs_done"); got != 2 {
		t.Errorf("b has done %v jobs", got)
	}
	again := plan(t, s[0], askFor(docs))
	if again.ID != 0 || again.Alone != wire.AloneHere || len(again.Own) != 0 {
		t.Errorf("all is here, and the plan is %+v", again)
	}
	s[0].unleased(t)
}

// unleased waits until nothing is leased for plans.
func (s side) unleased(t *testing.T) {
	t.Helper()
	eventually(t, "no leases are held", func() bool {
		for _, p := range s.store.Pools() {
			if p.LeasedBytes > 0 {
				return false
			}
		}
		return true
	})
}

// What an engine declines, and what a node refuses, is computed at home.
func TestADeclinedSegmentIsComputedAtHome(t *testing.T) {
	s := sides(t, 1, nil, "a", "b")
	docs := documents(4)
	s[1].works(t, docs, func(connector.Job) bool { return false })
	s[0].known(t, s[1:])
	p := plan(t, s[0], askFor(docs))
	if p.ID == 0 || len(p.Own) != 2 {
		t.Fatalf("%+v", p)
	}
	for i, x := range s[0].combine(t, docs, p) {
		if (x == wire.ProgressAborted) != (p.Rows[i].Worker != 0) {
			t.Errorf("row %d of worker %d: progress %d", i, p.Rows[i].Worker, x)
		}
	}
	if got := s[1].counter("parallel_jobs_declined"); got != 2 {
		t.Errorf("b has declined %v jobs", got)
	}
}

// An engine that does not answer costs its rows some time, and no more.
func TestALateSegmentIsComputedAtHome(t *testing.T) {
	s := sides(t, 10_000, nil, "a", "b") // 300 tokens are some 40 ms
	docs := documents(4)
	over := make(chan struct{})
	defer close(over)
	s[1].works(t, docs, func(connector.Job) bool {
		<-over
		return false
	})
	s[0].known(t, s[1:])
	p := plan(t, s[0], askFor(docs))
	if p.ID == 0 || len(p.Own) == len(docs) {
		t.Fatalf("%+v", p)
	}
	for i, x := range s[0].combine(t, docs, p) {
		// Its node may say first that the time of the job is over.
		if (x == wire.ProgressLate) != (p.Rows[i].Worker != 0) {
			t.Errorf("row %d of worker %d: progress %d", i, p.Rows[i].Worker, x)
		}
	}
	eventually(t, "b knows that its jobs are over", func() bool { return s[1].work.Load().Jobs == 0 })
}

// Token ids of a tenant that does not allow it stay where they are, whichever of the two
// nodes it is that does not.
func TestATenantHasToAllowIt(t *testing.T) {
	for i, where := range []string{"at home", "at the other node"} {
		t.Run(where, func(t *testing.T) {
			s := sides(t, 1, func(at int, c *settings.Config) {
				for k := range c.Tenants {
					c.Tenants[k].Parallel = at != i
				}
			}, "a", "b")
			docs := documents(3)
			if i == 0 {
				s[1].works(t, docs, nil)
				s[0].known(t, s[1:])
			}
			p := plan(t, s[0], askFor(docs))
			want := []uint8{wire.AloneNotAllowed, wire.AloneNoWorkers}[i]
			if i == 0 && p.Alone == wire.AloneNoWorkers {
				t.Errorf("why is not told: %+v", p)
			}
			if p.ID != 0 || p.Alone != want || len(p.Own) != len(docs) {
				t.Errorf("%+v, want %d", p, want)
			}
			s[0].combine(t, docs, p)
			if s[1].counter("parallel_jobs_taken") != 0 {
				t.Error("the other node was given jobs")
			}
		})
	}
}

// What does not fit here beside what is leased is computed here, where that says so.
func TestNoRoomAtHome(t *testing.T) {
	s := sides(t, 1, nil, "a", "b")
	docs := documents(8)
	s[1].works(t, docs, nil)
	s[0].known(t, s[1:])
	held := documentsOf(500, 400)
	leases := []*connector.Lease{}
	for _, d := range held {
		stored, err := s[0].model.Put(context.Background(), &connector.PutQuery{Spec: d.spec, Tokens: d.tokens, Source: connector.Source{Parts: partsOf(d)}})
		if err != nil || !stored.Published {
			break // full
		}
		leases = append(leases, get(t, s[0].model, d))
	}
	// A busy machine may take the other node for gone for a moment.
	asked := func() (p connector.Parallel) {
		eventually(t, "the other node is known", func() bool {
			p = plan(t, s[0], askFor(docs))
			return p.Alone != wire.AloneNoWorkers
		})
		return p
	}
	p := asked()
	if p.ID != 0 || p.Alone != wire.AloneNoRoom || len(p.Own) != len(docs) {
		t.Errorf("%d leases are held, and the plan is %+v", len(leases), p)
	}
	connector.Release(leases...)
	p = asked()
	if p.ID == 0 {
		t.Fatalf("with room: %+v", p)
	}
	// In a full pool, what is put may be evicted before it is read. Rows that have arrived may have evicted some already.
	for _, d := range held[:len(leases)] {
		if err := s[0].view.Remove(api.Digest(d.key)); !errors.Is(err, api.ErrNotFound) {
			must(t, err)
		}
	}
	s[0].combine(t, docs, p)
}

// documentsOf are n segments of 300 tokens that differ from documents.
func documentsOf(seed uint64, n int) (list []*document) {
	for i := range n {
		list = append(list, newDocument(testProfile(1), nil, seed+uint64(i), 300, profile.RoleMid))
	}
	return list
}

// Two engines of one node help each other without a cluster.
func TestEnginesOfOneNodeHelpEachOther(t *testing.T) {
	c := testConfig(t)
	c.PrefillSpeed, c.Tenants[0].Parallel = 1, true
	d := startDaemon(t, c, nil)
	_, m := openClient(t, d.Socket(), testProfile(1), connector.Binding{})
	_, other := openClient(t, d.Socket(), testProfile(1), connector.Binding{})
	home, beside := side{d, m}, side{d, other}
	docs := documents(4)
	p := plan(t, home, askFor(docs))
	if p.ID != 0 || p.Alone != wire.AloneNoWorkers {
		t.Fatalf("%+v", p)
	}
	e := beside.works(t, docs, nil)
	p = plan(t, home, askFor(docs))
	if p.ID == 0 || len(p.Own) != 2 {
		t.Fatalf("%+v", p)
	}
	home.combine(t, docs, p)
	e.done(t, 2)
}

// No client of a tenant without the setting is given token ids of another's prompts, of the
// same node either.
func TestJobsAreForTenantsThatAllowThem(t *testing.T) {
	c := testConfig(t)
	c.PrefillSpeed = 1
	d := startDaemon(t, c, nil)
	_, m := openClient(t, d.Socket(), testProfile(1), connector.Binding{})
	curious := attach(t, d.Socket())
	curious.register(testProfile(1))
	curious.refused(wire.OpWatch, &wire.WatchRequest{Profile: curious.profile, Jobs: 4, WaitMs: 1}, wire.Denied, "parallel: true")
	p := plan(t, side{d, m}, askFor(documents(4)))
	if p.ID != 0 || p.Alone != wire.AloneNotAllowed {
		t.Errorf("%+v", p)
	}
	curious.call(wire.OpWatch, &wire.WatchRequest{Profile: curious.profile, End: 1}, &wire.WatchReply{})
	if n := d.work.Load(); n.Plans+n.Workers+n.Jobs != 0 {
		t.Errorf("%+v", n)
	}
}

// A connection that ends has its plans end, and its jobs go back.
func TestConnectionsThatEnd(t *testing.T) {
	s := sides(t, 1, nil, "a", "b")
	docs := documents(4)
	over := make(chan struct{})
	began := make(chan struct{}, 8)
	s[1].works(t, docs, func(connector.Job) bool {
		began <- struct{}{}
		<-over
		return false
	})
	s[0].known(t, s[1:])
	client, m := openClient(t, s[0].Socket(), testProfile(1), connector.Binding{})
	p := plan(t, side{s[0].running, m}, askFor(docs))
	if p.ID == 0 {
		t.Fatalf("%+v", p)
	}
	<-began
	if _, _, err := s[0].model.WatchPlan(context.Background(), p.ID, 0); !errors.Is(err, connector.ErrGone) {
		t.Errorf("another connection's plan: %v", err)
	}
	client.Close()
	eventually(t, "the plan has ended at both nodes", func() bool {
		return s[0].work.Load().Plans == 0 && s[1].work.Load().Jobs == 0
	})
	if s[1].counter("parallel_jobs_withdrawn") == 0 {
		t.Error("no job was withdrawn")
	}
	close(over)
}

// Bad requests are refused, and change nothing.
func TestPlansThatMakeNoSense(t *testing.T) {
	s := sides(t, 1, nil, "a")
	docs := documents(2)
	m := s[0].model
	ctx := context.Background()
	twice := askFor([]*document{docs[0], docs[0]})
	if _, err := m.PlanSegments(ctx, twice); !errors.Is(err, connector.ErrInvalid) {
		t.Errorf("a segment that comes twice: %v", err)
	}
	if _, err := m.PlanSegments(ctx, &connector.ParallelQuery{}); !errors.Is(err, connector.ErrInvalid) {
		t.Errorf("no segments: %v", err)
	}
	if _, _, err := m.WatchPlan(ctx, 7, 0); !errors.Is(err, connector.ErrGone) {
		t.Errorf("a plan that is not there: %v", err)
	}
	if err := m.EndWork(ctx); err != nil {
		t.Errorf("the end of a worker that is none: %v", err)
	}
	if n := s[0].work.Load(); n.Plans+n.Workers+n.Jobs != 0 {
		t.Errorf("%+v", n)
	}
}
